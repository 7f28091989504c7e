"""Put what came into the chunks of its series: loose at first, then sealed, by step, with levels.

Sealed chunks of a series never overlap and hold what is shown. Loose ones are later than all sealed
ones and may repeat their steps; what they bring is merged in when there is enough of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchloom.weaver.store.series.points import (
    SIZE,
    Points,
    coarsen,
    columns,
    nothing,
    pack,
    resolve,
    summarise,
    unpack,
    whole,
)
from torchloom.weaver.store.series.tables import HIDDEN, LOOSE, SEALED, Sql, marks

SPAN = 256  # chunks
GROUP = 16  # chunks of a coarse bucket
_LAST_SPAN = 'SELECT "first", chunks FROM spans WHERE series = ? ORDER BY "first" DESC LIMIT 1'
_GONE_SPANS = 'DELETE FROM spans WHERE series = ? AND "last" >= ?'
_SPANS_END = 'SELECT max("last") FROM spans WHERE series = ?'
_ALL_SEALED = f"SELECT whole FROM chunks WHERE series = ? AND kind = {SEALED}"
_NEW_SPAN = (
    'INSERT INTO spans (series, "first", "last", chunks, count, coarse, fine)'
    " VALUES (?,?,?,?,?,?,?)"
)
CHUNK = 4096  # points of a sealed chunk, or fewer
ROOM = 256  # a loose chunk of fewer points is lengthened
FINE, COARSE = 16, 256  # points of a bucket
MOST = 32  # sealed chunks that are merged with at once; the rest of the points waits
_AT_ONCE = 500  # values of a list
_SPARE = 16  # chunks sealed at once beyond twice what comes: series that grow together take turns
_STATES = "SELECT id, number, loose, room FROM series WHERE id IN"
LATER = "UPDATE series SET number = ?, loose = ?, room = ? WHERE id = ?"
_NEW = (
    'INSERT INTO chunks (series, number, kind, "first", "last", count, since, upto, whole, coarse,'
    " fine, data) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
)
_LOOSE = f"SELECT data, since FROM chunks WHERE series = ? AND kind = {LOOSE} ORDER BY number"
_NO_LOOSE = f"DELETE FROM chunks WHERE series = ? AND kind = {LOOSE}"
_LEFT = (
    f'SELECT number, "first", "last" FROM chunks WHERE series = ? AND kind = {SEALED}'
    ' AND "first" <= ? ORDER BY "first" DESC LIMIT 1'
)
_RIGHT = (
    f'SELECT number, "first", "last" FROM chunks WHERE series = ? AND kind = {SEALED}'
    f' AND "first" > ? AND "first" <= ? ORDER BY "first" LIMIT {MOST + 1}'
)
_DATA = "SELECT data, since FROM chunks WHERE series = ? AND number = ?"
_GONE = "DELETE FROM chunks WHERE series = ? AND number = ?"


def respan(sql: Sql, key: int, since: int) -> None:
    """Sum up the sealed chunks of a series anew, where they changed from a step on."""
    for first, chunks in sql.rows(_LAST_SPAN, key):
        if chunks < SPAN:
            since = min(since, first)
    sql.many(_GONE_SPANS, [(key, since)])
    ((end,),) = sql.rows(_SPANS_END, key)
    after = ("", ()) if end is None else (' AND "first" > ?', (end,))
    found = sql.rows(f'{_ALL_SEALED}{after[0]} ORDER BY "first"', key, *after[1])
    fine = b"".join(row[0] for row in found)
    size = SPAN * SIZE
    sql.many(_NEW_SPAN, [_span_row(key, fine[at : at + size]) for at in range(0, len(fine), size)])


def _span_row(key: int, fine: bytes) -> tuple[int, int, int, int, int, bytes, bytes]:
    known = columns(fine)
    ends, count = (known.step_first[0], known.step_last[-1]), sum(known.count)
    return (key, *ends, len(known), count, coarsen(fine, GROUP), fine)


@dataclass(slots=True)
class _Series:
    """Where the chunks of a series stand."""

    id: int
    number: int
    loose: int
    room: int


@dataclass(slots=True)
class _Seal:
    """What becomes of the loose points of a series."""

    sealed: list[Points] = field(default_factory=list)
    rest: Points = field(default_factory=nothing)
    hidden: list[Points] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    since: int = 0


class Chunks:
    """The chunks of all series, within one transaction."""

    def __init__(self, sql: Sql, since: int, upto: int) -> None:
        self._sql = sql
        self._since, self._upto = since, upto  # the arrivals that are put into chunks
        self._lengthen = (
            f"UPDATE chunks SET data = {sql.append}, count = count + ?, upto = ?"
            " WHERE series = ? AND number = ?"
        )

    def add(self, come: Mapping[int, tuple[int, bytes]]) -> None:
        """Take in points: for each series how many, and their bytes in the order of coming."""
        states = list(self._states(list(come)))
        full = [state for state in states if state.loose + come[state.id][0] >= CHUNK]
        full.sort(key=lambda state: -state.loose)
        most = 2 * sum(count for count, _ in come.values()) // CHUNK + _SPARE
        sealing = {state.id for state in full[:most]}
        longer, new, changed = [], [], dict[int, int]()
        for state in states:
            count, data = come[state.id]
            if state.id in sealing:
                rows = self._seal(state, data)
                steps = [row[3] for row in rows if row[2] == SEALED]
                changed |= {state.id: min(steps)} if steps else {}
                new += rows
            elif 0 < state.room < ROOM:
                longer.append((data, count, self._upto, state.id, state.number))
                state.room += count
                state.loose += count
            else:
                state.number += 1
                state.room = count
                state.loose += count
                new.append(self._plain(state, LOOSE, self._since, count, data))
        self._sql.many(self._lengthen, longer)
        self._sql.many(_NEW, new)
        self._sql.many(LATER, [(s.number, s.loose, s.room, s.id) for s in states])
        for key, since in changed.items():
            respan(self._sql, key, since)

    def _states(self, keys: Sequence[int]) -> Iterator[_Series]:
        for at in range(0, len(keys), _AT_ONCE):
            some = keys[at : at + _AT_ONCE]
            for row in self._sql.rows(f"{_STATES} ({marks(len(some))})", *some):
                yield _Series(*row)

    def _seal(self, state: _Series, data: bytes) -> list[tuple[Any, ...]]:
        """Merge the loose points of a series into its sealed chunks; return the rows to add."""
        loose = self._sql.rows(_LOOSE, state.id)
        seal = self._plan(state.id, unpack(b"".join([*(row[0] for row in loose), data])))
        since = min([seal.since, *(row[1] for row in loose)])
        self._sql.many(_NO_LOOSE, [(state.id,)])
        self._sql.many(_GONE, [(state.id, number) for number in seal.gone])
        rows = []
        for points in seal.sealed:
            state.number += 1
            rows.append(self._levelled(state, since, points))
        for points in seal.hidden:
            state.number += 1
            rows.append(self._plain(state, HIDDEN, since, len(points), pack(points)))
        state.loose = state.room = len(seal.rest)
        if state.loose:
            state.number += 1
            rows.append(self._plain(state, LOOSE, since, state.loose, pack(seal.rest)))
        return rows

    def _plan(self, key: int, points: Points) -> _Seal:
        tail, hidden = resolve(points)
        seal = _Seal(since=self._since)
        first, last = tail.steps[0], tail.steps[-1]
        beside = [
            *self._sql.rows(_LEFT, key, first),
            *self._sql.rows(_RIGHT, key, first, last),
        ]
        at, stop = 0, len(tail)
        if len(beside) > MOST:
            stop = bisect_left(tail.steps, beside[MOST][1])
            seal.rest = tail.cut(stop, len(tail))
        beside = beside[:MOST]
        for place, (number, _, end) in enumerate(beside):
            if place + 1 < len(beside):
                until = bisect_left(tail.steps, beside[place + 1][1])
            else:
                until = stop if len(seal.rest) else bisect_right(tail.steps, end)
            if until > at:
                self._merge(seal, key, number, tail.cut(at, until))
                at = until
        if not len(seal.rest):
            full = at + (len(tail) - at) // CHUNK * CHUNK
            if seal.gone and len(tail) - full >= CHUNK // 2:
                full = len(tail)  # a rest that long would have all of this done again too soon
            seal.sealed += [tail.cut(n, min(n + CHUNK, full)) for n in range(at, full, CHUNK)]
            seal.rest = tail.cut(full, len(tail))
        if len(hidden):  # behind what was sealed: readers of hidden points keep the later of two
            seal.hidden.append(hidden)
        return seal

    def _merge(self, seal: _Seal, key: int, number: int, points: Points) -> None:
        ((data, since),) = self._sql.rows(_DATA, key, number)
        seal.since = min(seal.since, since)
        shown, hidden = resolve(unpack(data).before(points))
        pieces = -(-len(shown) // CHUNK)
        size = -(-len(shown) // pieces)
        seal.sealed += [shown.cut(at, at + size) for at in range(0, len(shown), size)]
        seal.gone.append(number)
        if len(hidden):
            seal.hidden.append(hidden)

    def _plain(
        self, state: _Series, kind: int, since: int, count: int, data: bytes
    ) -> tuple[Any, ...]:
        ends, levels = (0, 0), (None, None, None)
        key, come = (state.id, state.number, kind), (since, self._upto)
        return (*key, *ends, count, *come, *levels, data)

    def _levelled(self, state: _Series, since: int, points: Points) -> tuple[Any, ...]:
        fine = summarise(points, FINE)
        coarse = coarsen(fine, COARSE // FINE)
        ends, levels = (points.steps[0], points.steps[-1]), (whole(coarse), coarse, fine)
        key, come = (state.id, state.number, SEALED), (since, self._upto)
        return (*key, *ends, len(points), *come, *levels, pack(points))
