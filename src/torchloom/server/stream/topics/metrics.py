"""Curves and heat maps of a page: buckets at first, then points, and buckets again in time.

A page adds each point behind what it has. Whenever that would be wrong (a recovery repeats steps)
or too much, it is given new buckets; so what it holds is bounded, and is what the database has.
A page that shows a range of steps receives nothing else.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from torchloom.server.plane_access import PlaneAccess
from torchloom.server.stream.cursors import Position
from torchloom.server.stream.payloads import OWN, StreamPayload, columns
from torchloom.server.stream.topics.socket_messages import PageWriter, Sub
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.curves import recent
from torchloom.weaver.store.series.records import RecordStore
from torchloom.weaver.store.series.tables import RecordsSnapshot

STEP_SECONDS = "loom/step_seconds"  # reported by every rank once a second
RANKS = 1024  # lines, the first ranks
_CELLS = 100_000  # of all lines together: what a page takes in one message
_PREFIX = "metric."  # before a name that is one of a message's own
_MISSED = 20_000  # points that are sent one by one to a client that resumes
_MARKS = 2000  # letters of a cursor, which a page must be able to send back


Cell = tuple[int, str, int, float]  # rank, role, slot, value


def name_of(sub: Sub) -> str:
    """Return the name of the metric."""
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
        """Add a number; a cell keeps the greatest. NaN and infinity are left out."""
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


def drawn_heat(records: RecordStore, sub: Sub, job: str) -> dict[str, Any]:
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

    def __init__(self, access: PlaneAccess, writer: PageWriter, sub: Sub, job: str) -> None:
        self._access = access
        self._writer = writer
        self._sub = sub
        self._job = job
        self._width = 1

    async def begin(self, position: Position | None) -> Position | None:
        """Start over; what was missed is as large as the whole."""
        return None

    async def whole(self) -> None:
        """Send all lines."""
        found = await self._access.read(
            drawn_heat, self._access.store.records, self._sub, self._job
        )
        self._width = found["width"]
        self._writer.whole(self._sub.id, "", found)

    async def more(self, drafts: Sequence[StreamPayload], upto: Position, is_first: bool) -> None:
        """Send the cells with new values."""
        cells = cells_of(drafts, name_of(self._sub), self._width)
        if cells:
            self._writer.more(self._sub.id, "", {"cells": cells})


def cells_of(drafts: Iterable[StreamPayload], name: str, width: int) -> list[Cell]:
    """Return the cells of messages, the greatest value of each."""
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


Series = tuple[str, int, str]  # name, rank, role


class Moment:
    """One snapshot of the records, for several reads."""

    def __init__(self, reader: RecordsSnapshot) -> None:
        self._reader = reader

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[RecordsSnapshot]:
        yield self._reader


def drawn_series(records: RecordStore, sub: Sub, job: str) -> tuple[int, list[dict[str, Any]]]:
    """Return curves, and the number of what came last into them."""
    with records.snapshot() as reader:
        moment = Moment(reader)
        number = curves.news(moment).next
        wanted = (sub.names or None, sub.ranks or None, sub.first, sub.last, sub.buckets)
        found = curves.curves(moment, job, *wanted, replaced=sub.replaced)
        return number, [columns(curve) for curve in found]


class SeriesShaper:
    """What one page has of a job's curves."""

    def __init__(self, access: PlaneAccess, writer: PageWriter, sub: Sub, job: str) -> None:
        self._access = access
        self._writer = writer
        self._sub = sub
        self._job = job
        self._last: dict[Series, int] = {}  # the last step that the page has
        self._points = 0  # that it has got since it was given buckets, of its longest series
        self._number = 0

    async def begin(self, position: Position | None) -> Position | None:
        """Resume from a cursor where each missed point can be sent."""
        if position is None or position.arrived is None or position.logs is None:
            return None
        found = await self._access.read(
            curves.news, self._access.store.records, position.arrived, [self._job], _MISSED
        )
        count = sum(len(segment.steps) for segment in found.segments)
        if not found.is_whole or count >= _MISSED:
            return None
        self._last = {_series(key): step for key, step in position.logs.items()}
        self._points, self._number = position.row, position.arrived
        return Position(arrived=position.arrived)

    async def whole(self) -> None:
        """Send all curves as buckets."""
        number, found = await self._access.read(
            drawn_series, self._access.store.records, self._sub, self._job
        )
        self._number, self._points = number, 0
        self._last = {(one["name"], one["rank"], one["role"]): one["steps"][-1] for one in found}
        self._writer.whole(self._sub.id, self._cursor(), {"series": found})

    async def more(self, drafts: Sequence[StreamPayload], upto: Position, is_first: bool) -> None:
        """Send new points, or all curves again."""
        new = [draft for draft in drafts if draft.body["seq"] > self._number]
        points = self._points_of(new)
        self._number = max(self._number, upto.arrived or 0)
        if not points and not is_first:
            return
        if not self._fits(points):
            await self.whole()
            return
        for series, rows in points.items():
            self._last[series] = rows[-1][0]
        self._points += max(map(len, points.values()), default=0)
        shown = [_shown(series, rows) for series, rows in points.items()]
        self._writer.more(self._sub.id, self._cursor(), {"points": shown})

    def _points_of(
        self, drafts: Sequence[StreamPayload]
    ) -> dict[Series, list[tuple[int, float, float]]]:
        found: dict[Series, list[tuple[int, float, float]]] = {}
        for draft in drafts:
            body = draft.body
            if not _is_within(self._sub, body["step"]):
                continue
            for key, value in body.items():
                name = key.removeprefix(_PREFIX) if key[len(_PREFIX) :] in OWN else key
                if key in OWN or (self._sub.names and name not in self._sub.names):
                    continue
                series = (name, body["rank"], body["role"])
                found.setdefault(series, []).append((body["step"], draft.time, value))
        return found

    def _fits(self, points: dict[Series, list[tuple[int, float, float]]]) -> bool:
        """Return whether all points lie behind what the page has, and are not too many."""
        for series, rows in points.items():
            steps = [self._last.get(series, rows[0][0] - 1), *(row[0] for row in rows)]
            if any(after <= before for before, after in pairwise(steps)):
                return False
        return self._points + max(map(len, points.values()), default=0) <= self._sub.buckets

    def _cursor(self) -> str:
        """Return the cursor of the page; with too many series it only has the position."""
        marks = {f"{name}\n{rank}\n{role}": step for (name, rank, role), step in self._last.items()}
        is_sayable = all(step >= 0 for step in marks.values())
        text = str(Position(arrived=self._number, row=self._points, logs=marks))
        return text if is_sayable and len(text) <= _MARKS else f"..{self._number}"


def _is_within(sub: Sub, step: int) -> bool:
    is_after = sub.first is None or step >= sub.first
    return is_after and (sub.last is None or step <= sub.last)


def _series(key: str) -> Series:
    name, rank, role = [*key.split("\n"), "", ""][:3]
    return name, int(rank) if rank.lstrip("-").isdecimal() else -1, role


def _shown(series: Series, rows: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    name, rank, role = series
    steps, times, values = (list(column) for column in zip(*rows, strict=True))
    return {
        "name": name,
        "rank": rank,
        "role": role,
        "steps": steps,
        "times": times,
        "values": values,
    }
