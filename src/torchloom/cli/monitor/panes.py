"""Draw a snapshot into the panes of the screen; the windows for text and devices."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from rich.markup import escape
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.screen import ModalScreen, Screen
from textual.widgets import Label, Static

from torchloom.cli.monitor import view
from torchloom.cli.monitor.poll import Fact, ScreenSnapshot
from torchloom.cli.monitor.widgets import TableView

WIDE = 120  # columns of a terminal


class TextWindow(ModalScreen[None]):
    """A window with text, such as the answer to a prompt line."""

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


class DevicesWindow(ModalScreen[str]):
    """The devices; a key closes the window with a prompt line about the selected one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "dismiss('')", "close"),
        Binding("f", "say('fail_device')", "failed"),
        Binding("c", "say('recover_device')", "healthy"),
        Binding("x", "say('drain')", "drain"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._devices: Sequence[Any] | None = None  # no reply yet

    def compose(self) -> ComposeResult:
        sheet = TableView(view.DEVICES, "devices")
        sheet.empty = "loading .."
        sheet.border_title = "devices"
        sheet.border_subtitle = "f failed  c healthy  x drain  Esc closes"
        yield sheet

    def on_mount(self) -> None:
        self.query_one(TableView).focus()
        self._fill()

    def show(self, devices: Sequence[Any]) -> None:
        """Update the table; a snapshot may arrive before the table exists."""
        self._devices = devices
        self._fill()

    def _fill(self) -> None:
        for sheet in self.query(TableView):
            if self._devices is not None:
                sheet.empty = "no devices yet: no agent or rank has reported one"
                sheet.fill(view.device_rows(self._devices))

    def action_say(self, word: str) -> None:
        if key := self.query_one(TableView).key:
            self.dismiss(f"{word} {key}")


@dataclass(slots=True)
class ScreenOptions:
    """What the user has chosen: filters, order of ranks, first curve."""

    filters: dict[str, str] = field(default_factory=lambda: {"jobs": "", "ranks": ""})
    is_worst_first: bool = False
    metric: int = 0  # the curve on top


def draw(screen: Screen[Any], seen: ScreenSnapshot, look: ScreenOptions) -> None:
    """Draw all panes."""
    now = datetime.now().strftime("%H:%M:%S")
    screen.query_one("#top", Label).update(view.top_line(seen, now, screen.size.width))
    trouble = screen.query_one("#trouble", Label)
    trouble.display = bool(seen.trouble)
    trouble.update(f" {view.trouble_line(seen)}")
    _jobs(screen.query_one("#jobs", TableView), seen, look.filters["jobs"])
    _ranks(screen.query_one("#ranks", TableView), seen, look, screen.size.width >= WIDE)
    screen.query_one("#events", TableView).fill(view.event_rows(seen.events))
    _curves(screen.query_one("#curves", Static), seen.series, look.metric)


def _jobs(sheet: TableView, seen: ScreenSnapshot, wanted: str) -> None:
    rows = view.matching(view.job_rows(seen), wanted)
    sheet.fill(rows, first=seen.job)
    hidden = len(seen.jobs) - len(rows)
    sheet.border_title = f" jobs ({hidden} hidden by the filter) " if hidden else " jobs "


def _ranks(sheet: TableView, seen: ScreenSnapshot, look: ScreenOptions, is_wide: bool) -> None:
    rows = view.rank_rows(seen.ranks, look.is_worst_first, is_wide)
    shown = view.matching(rows, look.filters["ranks"])
    sheet.fill(shown, view.WIDE_RANKS if is_wide else view.RANKS)
    sheet.border_title = escape(f" {view.ranks_title(seen, len(shown))} ")


def _curves(pane: Static, series: Sequence[Fact], first: int) -> None:
    width, height = pane.content_size
    if not width:
        return
    lines = view.curve_lines(series, width, height, first)
    text = Text("\n").join(Text(line, style) for line, style in lines)
    pane.update(text if lines else Text("no metrics yet", "dim"))
