"""What threads tell the screen."""

from textual.message import Message

from torchloom.cli.monitor.poll import Snapshot
from torchloom.cli.monitor.prompt import Said


class Seen(Message):
    """How things are now."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class Done(Message):
    """What came of a line of the prompt: an answer or trouble, and the job it chose."""

    def __init__(self, line: str, said: Said | None, trouble: str, job: str) -> None:
        super().__init__()
        self.line = line
        self.said = said
        self.trouble = trouble
        self.job = job


class Choices(Message):
    """How a line may go on."""

    def __init__(self, text: str, choices: list[str]) -> None:
        super().__init__()
        self.text = text
        self.choices = choices
