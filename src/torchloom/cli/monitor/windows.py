"""What is laid over the screen for a moment: a text, or the devices."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.markup import escape
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.screen import ModalScreen
from textual.widgets import Static

from torchloom.cli.monitor import view
from torchloom.cli.monitor.sheet import Sheet


class Reading(ModalScreen[None]):
    """A text to read, such as the answer to a line of the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "close"),
        Binding("j", "scroll('down')", show=False),
        Binding("k", "scroll('up')", show=False),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with ScrollableContainer(id="reading") as box:
            box.border_title = escape(self._title)
            box.border_subtitle = "Esc closes"
            yield Static(Text(self._text, no_wrap=True), id="text")

    def on_mount(self) -> None:
        self.query_one("#reading").focus()

    def action_scroll(self, way: str) -> None:
        box = self.query_one("#reading")
        (box.scroll_down if way == "down" else box.scroll_up)(animate=False)


class Devices(ModalScreen[str]):
    """The map of devices; a key gives back the line that says what happened to one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "dismiss('')", "close"),
        Binding("f", "say('fail_device')", "failed"),
        Binding("c", "say('recover_device')", "well again"),
        Binding("x", "say('drain')", "drain"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._devices: Sequence[Any] | None = None  # nobody has told of any yet

    def compose(self) -> ComposeResult:
        sheet = Sheet(view.DEVICES, "devices")
        sheet.empty = "asking .."
        sheet.border_title = "devices"
        sheet.border_subtitle = "f failed  c well again  x drain  Esc closes"
        yield sheet

    def on_mount(self) -> None:
        self.query_one(Sheet).focus()
        self._fill()

    def show(self, devices: Sequence[Any]) -> None:
        """Bring the table up to date; there may be none yet: news can come before it is made."""
        self._devices = devices
        self._fill()

    def _fill(self) -> None:
        for sheet in self.query(Sheet):
            if self._devices is not None:
                sheet.empty = "no devices yet: no agent or rank has told of one"
                sheet.fill(view.device_rows(self._devices))

    def action_say(self, word: str) -> None:
        if key := self.query_one(Sheet).key:
            self.dismiss(f"{word} {key}")
