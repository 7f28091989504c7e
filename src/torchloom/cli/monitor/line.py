"""The line at the bottom of the screen: a prompt, a filter, with history and the Tab key."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class Line(Input):
    """One line of input that is only there while it is wanted."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", priority=True),
        Binding("up", "older(1)", "older"),
        Binding("down", "older(-1)", show=False),
        Binding("tab", "complete", "complete", priority=True),
    ]

    class Left(Message):
        """Nothing is wanted any more."""

    class Stuck(Message):
        """Somebody wants to know how the line may go on."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, lines: list[str]) -> None:
        super().__init__(id="line", compact=True, select_on_focus=False)
        self._lines = lines
        self._back = 0
        self.purpose = ":"

    def open(self, purpose: str, text: str = "") -> None:
        """Take a line for a purpose: `:` a command, `/` a filter."""
        self.purpose = purpose
        self._back = 0
        self.value = text
        self.cursor_position = len(text)
        self.screen.set_focus(self)  # at once: the next key is the first of the line

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def action_older(self, by: int) -> None:
        """Bring back a line that was typed before."""
        if self.purpose != ":":
            return
        self._back = max(0, min(self._back + by, len(self._lines)))
        self.value = self._lines[-self._back] if self._back else ""
        self.cursor_position = len(self.value)

    def action_complete(self) -> None:
        if self.purpose == ":":
            self.post_message(self.Stuck(self.value[: self.cursor_position]))

    def go_on(self, text: str, choices: list[str]) -> None:
        """Put in as much as all choices have in common, if nobody has typed on since."""
        if not choices or text != self.value[: self.cursor_position]:
            return
        begun = text.rpartition(" ")[2].removeprefix(":")
        more = shared(choices)[len(begun) :]
        if len(choices) == 1 and not choices[0].endswith("="):
            more += " "
        self.insert_text_at_cursor(more)


def shared(words: list[str]) -> str:
    """Return with what all words begin."""
    first, last = min(words), max(words)
    same = (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]
