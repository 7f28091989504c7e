"""Bring the panes of the screen in line with a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.text import Text
from textual.screen import Screen
from textual.widgets import Label, Static

from torchloom.cli.monitor import view
from torchloom.cli.monitor.poll import Fact, Snapshot
from torchloom.cli.monitor.sheet import Sheet

WIDE = 120  # columns of a terminal


@dataclass(slots=True)
class Look:
    """How somebody wants to see it."""

    filters: dict[str, str] = field(default_factory=lambda: {"jobs": "", "ranks": ""})
    is_worst_first: bool = False
    metric: int = 0  # the curve on top


def draw(screen: Screen[Any], seen: Snapshot, look: Look) -> None:
    """Draw everything."""
    now = datetime.now().strftime("%H:%M:%S")
    screen.query_one("#top", Label).update(view.top_line(seen, now, screen.size.width))
    trouble = screen.query_one("#trouble", Label)
    trouble.display = bool(seen.trouble)
    trouble.update(f" {view.trouble_line(seen)}")
    _jobs(screen.query_one("#jobs", Sheet), seen, look.filters["jobs"])
    _ranks(screen.query_one("#ranks", Sheet), seen, look, screen.size.width >= WIDE)
    screen.query_one("#events", Sheet).fill(view.event_rows(seen.events))
    _curves(screen.query_one("#curves", Static), seen.series, look.metric)


def _jobs(sheet: Sheet, seen: Snapshot, wanted: str) -> None:
    rows = view.matching(view.job_rows(seen), wanted)
    sheet.fill(rows, first=seen.job)
    hidden = len(seen.jobs) - len(rows)
    sheet.border_title = f" jobs ({hidden} hidden by the filter) " if hidden else " jobs "


def _ranks(sheet: Sheet, seen: Snapshot, look: Look, is_wide: bool) -> None:
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
    pane.update(text if lines else Text("nothing was logged yet", "dim"))
