"""The prompt line and a table of any length, which draws only its visible lines."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input

from torchloom.cli.output import GAP, narrowed, shrunk

TONES = {
    "": Style(),
    "good": Style(color="green"),
    "busy": Style(color="cyan"),
    "warn": Style(color="magenta", bold=True),  # yellow is unreadable on a white terminal
    "bad": Style(color="red", bold=True),
    "dim": Style(dim=True),
}


class PromptLine(Input):
    """An input line that is only visible while it is used."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", priority=True),
        Binding("up", "older(1)", "older"),
        Binding("down", "older(-1)", show=False),
        Binding("tab", "complete", "complete", priority=True),
    ]

    class Left(Message):
        """The line was closed."""

    class Stuck(Message):
        """Completion of the line was requested."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, lines: list[str]) -> None:
        super().__init__(id="line", compact=True, select_on_focus=False)
        self._lines = lines
        self._back = 0
        self.purpose = ":"

    def open(self, purpose: str, text: str = "") -> None:
        """Open the line for a purpose: `:` a command, `/` a filter."""
        self.purpose = purpose
        self._back = 0
        self.value = text
        self.cursor_position = len(text)
        self.screen.set_focus(self)  # at once: the next key is the first of the line

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def action_older(self, by: int) -> None:
        """Recall an earlier line."""
        if self.purpose != ":":
            return
        self._back = max(0, min(self._back + by, len(self._lines)))
        self.value = self._lines[-self._back] if self._back else ""
        self.cursor_position = len(self.value)

    def action_complete(self) -> None:
        if self.purpose == ":":
            self.post_message(self.Stuck(self.value[: self.cursor_position]))

    def insert_completion(self, text: str, choices: list[str]) -> None:
        """Insert the common prefix of all choices, if the line has not changed since."""
        if not choices or text != self.value[: self.cursor_position]:
            return
        begun = text.rpartition(" ")[2].removeprefix(":")
        more = shared(choices)[len(begun) :]
        if len(choices) == 1 and not choices[0].endswith("="):
            more += " "
        self.insert_text_at_cursor(more)


def shared(words: list[str]) -> str:
    """Return the common prefix of words."""
    first, last = min(words), max(words)
    same = (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]


class Column(NamedTuple):
    """One column; numbers are right-aligned."""

    head: str
    right: bool = False


class TableRow(NamedTuple):
    """One row, with the colour of one of its cells."""

    key: str
    cells: tuple[str, ...]
    tone: str = ""
    toned: int = 1  # the cell that has it: most often the state
    text: str = ""  # text for filters; default: the cells


class TableView(ScrollView, can_focus=True):
    """Rows with a cursor, which stays on its row while rows are added, removed and moved."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home,g", "move(-1000000000)", "first", show=False),
        Binding("end,G", "move(1000000000)", "last", show=False),
        Binding("enter", "pick", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, sheet: "TableView", key: str) -> None:
            super().__init__()
            self.sheet = sheet
            self.key = key

    class Picked(Moved):
        """A row was chosen with Enter."""

    def __init__(self, columns: Sequence[Column], name: str, *, follows: bool = False) -> None:
        super().__init__(id=name)
        self._columns = tuple(columns)
        self._follows = follows  # keep the end visible until the user scrolls away
        self._rows: tuple[TableRow, ...] = ()
        self._widths: list[int] = [len(column.head) for column in columns]
        self._cursor = 0
        self._reported = ""  # the row of the last `Moved` message
        self.empty = ""

    @property
    def key(self) -> str:
        """The row under the cursor."""
        return self._rows[self._cursor].key if self._rows else ""

    @property
    def rows(self) -> tuple[TableRow, ...]:
        return self._rows

    def fill(
        self, rows: Sequence[TableRow], columns: Sequence[Column] = (), first: str = ""
    ) -> None:
        """Show these rows; the cursor stays on its row, if there is one, or begins on the first."""
        self._columns = tuple(columns) or self._columns
        was, at_end = self._reported or first, self._cursor >= len(self._rows) - 1
        self._rows = tuple(rows)
        cells = [column.head for column in self._columns], *(row.cells for row in rows)
        self._widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        self.virtual_size = Size(self._room.width, len(rows) + 1)
        if self._follows and at_end:
            self._go(len(rows) - 1)
        else:
            self.choose(was)
        self.refresh()

    def choose(self, key: str) -> bool:
        """Move the cursor to a row by its key; if the row is gone, leave it at its position."""
        places = (n for n, row in enumerate(self._rows) if row.key == key)
        found = next(places, None)
        self._go(self._cursor if found is None else found)
        return found is not None

    def action_move(self, by: int) -> None:
        self._go(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self._cursor + by * max(1, self._room.height - 2))

    def action_pick(self) -> None:
        if self._rows:
            self.post_message(self.Picked(self, self.key))

    def on_click(self, event: events.Click) -> None:
        line = event.y + self.scroll_offset.y - 1
        if event.y > 0 and line < len(self._rows):
            self._go(line)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one line; the first is the header."""
        width = self._room.width
        if y == 0:
            heads = tuple(column.head for column in self._columns)
            return self._line(TableRow("", heads), Style(bold=True), width)
        if not self._rows:
            text = self.empty if y == 1 else ""
            return Strip([Segment(text[:width].ljust(width), Style(dim=True))], width)
        line = y - 1 + self.scroll_offset.y
        if line >= len(self._rows):
            return Strip.blank(width)
        row = self._rows[line]
        is_chosen = line == self._cursor and not (self._follows and not self.has_focus)
        style = Style(reverse=self.has_focus, bold=True) if is_chosen else Style()
        return self._line(row, style, width)

    def _line(self, row: TableRow, style: Style, width: int) -> Strip:
        segments, room = [], width
        last = len(row.cells) - 1
        widths = narrowed(self._widths, width)
        for n, (cell, column, wide) in enumerate(
            zip(row.cells, self._columns, widths, strict=True)
        ):
            wide = max(0, room if n == last else min(wide, room))
            text = shrunk(cell, wide)[:wide]
            text = text.rjust(wide) if column.right and n != last else text.ljust(wide)
            own = style if n != row.toned or style.reverse else TONES[row.tone] + style
            gap = min(GAP, room - wide) if n != last else 0
            segments += [Segment(text, own), Segment(" " * gap, style)]
            room -= wide + gap
        return Strip(segments, width)

    def _go(self, line: int) -> None:
        """Move the cursor to an existing line, scroll it into view and post `Moved`."""
        self._cursor = max(0, min(line, len(self._rows) - 1))
        height = max(1, self._room.height - 1)
        top = self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)
        if self.key != self._reported:
            self._reported = self.key
            self.post_message(self.Moved(self, self.key))
        self.refresh()

    @property
    def _room(self) -> Size:
        """The size without border and scrollbar."""
        return self.scrollable_content_region.size
