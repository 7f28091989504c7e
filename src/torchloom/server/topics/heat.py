"""One number of all ranks over the last while, as lines of cells: who differs, and since when.

A cell is a stretch of time of one rank and has the greatest value that the rank told in it. Time is
cut alike for all ranks, so cells below each other are of one moment.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torchloom.server.cursors import Position
from torchloom.server.desk import Desk
from torchloom.server.drafts import OWN, Draft
from torchloom.server.topics.asked import Sub
from torchloom.server.topics.saying import Voice
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.curves import recent
from torchloom.weaver.store.series.records import RecordStore

STEP_SECONDS = "loom/step_seconds"  # what every rank tells of itself once a second
RANKS = 1024  # lines, the first ranks
_CELLS = 100_000  # of all lines together: what a page takes in one message

Cell = tuple[int, str, int, float]  # rank, role, slot, value


def name_of(sub: Sub) -> str:
    """Return what is looked at."""
    return sub.names[0] if sub.names else STEP_SECONDS


def slots_of(span: int, columns: int, ranks: int) -> tuple[int, int]:
    """Return how many cells a line has, and how many whole seconds one lasts."""
    most = max(1, min(columns, _CELLS // max(1, ranks)))
    width = max(1, math.ceil(span / most))
    return math.ceil(span / width), width


class Heat:
    """Lines that are being filled."""

    def __init__(self, name: str, columns: int, width: int) -> None:
        self.name = name
        self.columns = columns
        self.width = width
        self._cells: dict[tuple[int, str], dict[int, float]] = {}

    def take(self, rank: int, role: str, time: float, value: float) -> None:
        """Take a number in; of a cell the greatest stays. What is none is left out."""
        if math.isfinite(value):
            line = self._cells.setdefault((rank, role), {})
            slot = int(time // self.width)
            line[slot] = max(value, line.get(slot, -math.inf))

    def shape(self, left_out: int) -> dict[str, Any]:
        """Return the last cells of all lines, which end with the newest of any."""
        end = max((slot for line in self._cells.values() for slot in line), default=0)
        begin = end - self.columns + 1
        lines = sorted(self._cells.items())
        return {
            "name": self.name,
            "columns": self.columns,
            "width": self.width,
            "start": begin,
            "left_out": left_out,
            "lines": [_line(key, cells, range(begin, end + 1)) for key, cells in lines],
        }


def drawn(records: RecordStore, sub: Sub, job: str) -> dict[str, Any]:
    """Return all lines of the last while, which ends where the job's numbers end."""
    name = name_of(sub)
    known = curves.series(records, job, [name])
    ranks = sorted({each.rank for each in known})
    columns, width = slots_of(sub.span, sub.buckets, min(len(known), RANKS))
    heat = Heat(name, columns, width)
    for one in recent(records, job, name, ranks[:RANKS], columns * width, 2 * columns):
        for time, value in zip(one.times, one.max, strict=True):
            heat.take(one.series.rank, one.series.role, time, value)
    return heat.shape(max(0, len(ranks) - RANKS))


class HeatShaper:
    """What one page has of a job's lines; it drops by itself what is older than a while."""

    def __init__(self, desk: Desk, voice: Voice, sub: Sub, job: str) -> None:
        self._desk = desk
        self._voice = voice
        self._sub = sub
        self._job = job
        self._width = 1

    async def begin(self, position: Position | None) -> Position | None:
        """Begin anew; what was missed is as much as the whole."""
        return None

    async def whole(self) -> None:
        """Say all lines."""
        found = await self._desk.read(drawn, self._desk.store.records, self._sub, self._job)
        self._width = found["width"]
        self._voice.whole(self._sub.id, "", found)

    async def more(self, drafts: Sequence[Draft], upto: Position, is_first: bool) -> None:
        """Say the cells that got something."""
        cells = cells_of(drafts, name_of(self._sub), self._width)
        if cells:
            self._voice.more(self._sub.id, "", {"cells": cells})


def cells_of(drafts: Iterable[Draft], name: str, width: int) -> list[Cell]:
    """Return what messages say of cells, the greatest of each."""
    found: dict[tuple[int, str, int], float] = {}
    key_of = f"metric.{name}" if name in OWN else name
    for draft in drafts:
        value = draft.body.get(key_of)
        if value is not None and math.isfinite(value) and draft.rank < RANKS:
            key = (draft.rank, str(draft.body["role"]), int(draft.time // width))
            found[key] = max(value, found.get(key, -math.inf))
    return [(*key, _short(value)) for key, value in found.items()]


def _line(key: tuple[int, str], cells: dict[int, float], slots: range) -> dict[str, Any]:
    values = [None if slot not in cells else _short(cells[slot]) for slot in slots]
    return {"rank": key[0], "role": key[1], "values": values}


def _short(value: float) -> float:
    return float(f"{value:.3g}")
