"""The series of a job as one reader sees them: sealed chunks with levels, and what came since."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeAlias

from torchloom.weaver.store.series.chunks import CHUNK, COARSE, FINE, GROUP
from torchloom.weaver.store.series.points import (
    HIGHEST,
    LOWEST,
    Part,
    Points,
    joined,
    pack,
    parts,
    piece,
    pieces,
    resolve,
    summarise,
    unpack,
)
from torchloom.weaver.store.series.tables import HIDDEN, LOOSE, SEALED, marks

_AT_ONCE = 500  # values of a list
_SERIES = "SELECT id, name, rank, role FROM series WHERE job = ?"
_LOOSE = f"SELECT series, data FROM chunks WHERE kind = {LOOSE} AND series IN"
_HIDDEN = f"SELECT data FROM chunks WHERE series = ? AND kind = {HIDDEN} ORDER BY number"
_WITH_HIDDEN = f"SELECT DISTINCT series FROM chunks WHERE kind = {HIDDEN} AND series IN"
_ARRIVED = (
    "SELECT data FROM arrivals WHERE job = ? AND number > (SELECT merged FROM progress)"
    " ORDER BY number"
)
_CHUNKS = (
    f"FROM chunks WHERE series = ? AND kind = {SEALED}"
    ' AND "first" <= ? AND "last" >= ? ORDER BY "first"'
)
_SPANS = (
    'SELECT "first", "last", count FROM spans WHERE series = ? AND "first" <= ? AND "last" >= ?'
    ' ORDER BY "first"'
)
_DATA = "SELECT data FROM chunks WHERE series = ? AND number = ?"
_CHUNK_LEVELS = {CHUNK: "whole", COARSE: "coarse", FINE: "fine", 1: "data"}
_SPAN_LEVELS = {CHUNK * GROUP: "coarse", CHUNK: "fine"}


class SqlReader(Protocol):
    """One moment of the database; words have a `?` for each value."""

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]: ...


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """A metric of one rank of a job."""

    id: int
    job: str
    name: str
    rank: int
    role: str


class _Chunk(NamedTuple):
    """A sealed chunk that nothing newer lies in."""

    first: int
    last: int
    points: int
    number: int
    level: bytes | None = None  # its buckets, where it was known which are wanted


class _Span(NamedTuple):
    """A span that nothing newer lies in."""

    first: int
    last: int
    points: int


_Part: TypeAlias = _Chunk | _Span | Points


class StoredSeries:
    """One series; `come` are its points that are not sealed, in the order of their arrival."""

    def __init__(
        self, reader: SqlReader, series: SeriesKey, come: Points, has_hidden: bool
    ) -> None:
        self._reader = reader
        self.series = series
        self._top, self._replaced = resolve(come)  # what is shown of them, by step, and what is not
        self._has_hidden = has_hidden

    def blocks(self, first: int, last: int, newest: bool = False) -> Iterator[Points]:
        """Yield what is shown from a step to another, a chunk at a time, the newest one first."""
        nodes = self._chunks(first, last)
        edges = [first, *(node.first for node in nodes)]
        turns = range(len(nodes), -1, -1) if newest else range(len(nodes) + 1)
        for turn in turns:
            until = nodes[turn].first - 1 if turn < len(nodes) else last
            points = self._top.between(max(first, edges[turn]), min(until, last))
            if turn:
                ((data,),) = self._reader.rows(_DATA, self.series.id, nodes[turn - 1].number)
                points = resolve(unpack(data).before(points))[0].between(first, last)
            if len(points):
                yield points

    def level(self, first: int, last: int, buckets: int) -> bytes:
        """Return what is shown as buckets, at least so many if there are as many points."""
        spans = [_Span(*row) for row in self._reader.rows(_SPANS, self.series.id, last, first)]
        guess = 0
        inside = sum(span.points for span in spans if first <= span.first and span.last <= last)
        if inside >= buckets * CHUNK:
            found = list(self._parts(first, last, spans, self._opened_span))
            scales = tuple(_SPAN_LEVELS)
        else:
            scales = tuple(_CHUNK_LEVELS)
            guess = _scale(scales, inside + len(self._top), buckets)
            nodes = self._chunks(first, last, _CHUNK_LEVELS[guess] if guess > 1 else "NULL")
            found = list(self._parts(first, last, nodes, self._opened))
        total = sum(len(part) if isinstance(part, Points) else part.points for part in found)
        scale = _scale(scales, total, buckets)
        if scale == 1:
            return summarise(self._all(found), max(1, -(-total // buckets)))
        return self._joined(found, scale, {} if scale == guess else self._levels(found, scale))

    def has_replaced(self) -> bool:
        """Return whether a later generation has repeated steps of this series."""
        if self._has_hidden or len(self._replaced):
            return True
        return any(len(points) for points in self._overlaps(LOWEST, HIGHEST))

    def replaced(self, first: int, last: int) -> dict[int, Points]:
        """Return the points that later generations have replaced: by generation, each by step."""
        rows = self._reader.rows(_HIDDEN, self.series.id) if self._has_hidden else ()
        newer = map(pack, (*self._overlaps(first, last), self._replaced))
        come: dict[int, list[Part]] = defaultdict(list)
        for part in pieces(b"".join([*(row[0] for row in rows), *newer])):
            come[part[0]].append(part)
        found = {}
        for generation in sorted(come):
            whole, _ = resolve(unpack(piece(come[generation])[1]))
            if len(points := whole.between(first, last)):
                found[generation] = points
        return found

    def _overlaps(self, first: int, last: int) -> Iterator[Points]:
        """Yield what sealed chunks and newer points of the same steps hide of each other."""
        if not len(steps := self._top.steps):
            return
        for chunk in self._chunks(max(first, steps[0]), min(last, steps[-1])):
            newer = self._top.between(chunk.first, chunk.last)
            if len(newer):
                ((data,),) = self._reader.rows(_DATA, self.series.id, chunk.number)
                yield resolve(unpack(data).before(newer))[1]

    def _chunks(self, first: int, last: int, column: str = "NULL") -> list[_Chunk]:
        words = f'SELECT "first", "last", count, number, {column} {_CHUNKS}'
        return [_Chunk._make(row) for row in self._reader.rows(words, self.series.id, last, first)]

    def _parts(
        self,
        first: int,
        last: int,
        nodes: Sequence[Any],
        opened: Callable[[Any, int, int], Iterator[_Part]],
    ) -> Iterator[_Part]:
        """Yield in order what can be taken as it is summed up, and the points of the rest."""
        steps = self._top.steps
        at = bisect_left(steps, first)  # what is newer and before it has been given
        for node in nodes:
            begin = bisect_left(steps, node.first, at)
            end = bisect_right(steps, node.last, begin)
            if begin > at:
                yield self._top.cut(at, begin)
            if begin == end and first <= node.first and node.last <= last:
                yield node
            else:
                yield from opened(node, max(first, node.first), min(last, node.last))
            at = end
        yield self._top.cut(at, bisect_right(steps, last))

    def _opened(self, chunk: _Chunk, first: int, last: int) -> Iterator[_Part]:
        ((data,),) = self._reader.rows(_DATA, self.series.id, chunk.number)
        newer = self._top.between(chunk.first, chunk.last)
        yield resolve(unpack(data).before(newer))[0].between(first, last)

    def _opened_span(self, span: _Span, first: int, last: int) -> Iterator[_Part]:
        return self._parts(first, last, self._chunks(first, last), self._opened)

    def _all(self, found: Sequence[_Part]) -> Points:
        """Return the points, where there are too few to sum them up."""
        blocks = []
        for part in found:
            if isinstance(part, _Chunk):
                ((data,),) = self._reader.rows(_DATA, self.series.id, part.number)
                blocks.append(unpack(data))
            elif isinstance(part, Points):
                blocks.append(part)
        return joined(blocks)

    def _joined(
        self, found: Sequence[_Part], scale: int, levels: Mapping[tuple[type, int], bytes]
    ) -> bytes:
        parts: list[bytes] = []
        for are_points, run in groupby(found, lambda part: isinstance(part, Points)):
            if are_points:
                parts.append(summarise(joined(list(run)), scale))  # type: ignore[arg-type]
                continue
            for part in run:
                at_hand = part.level if isinstance(part, _Chunk) and not levels else None
                parts.append(at_hand or levels[type(part), part.first])  # type: ignore[union-attr]
        return b"".join(parts)

    def _levels(self, found: Sequence[_Part], scale: int) -> Mapping[tuple[type, int], bytes]:
        """Return the buckets of what is summed up already."""
        levels: dict[tuple[type, int], bytes] = {}
        for kind, table, column in (
            (_Chunk, "chunks", _CHUNK_LEVELS[min(scale, CHUNK)]),
            (_Span, "spans", _SPAN_LEVELS.get(scale, "fine")),
        ):
            wanted = [part.first for part in found if isinstance(part, kind)]
            if not wanted:
                continue
            words = f'SELECT "first", {column} FROM {table} WHERE series = ?'
            words += f" AND kind = {SEALED}" if kind is _Chunk else ""
            ends = (wanted[0], wanted[-1])
            rows = self._reader.rows(f'{words} AND "first" BETWEEN ? AND ?', self.series.id, *ends)
            levels |= {(kind, first): data for first, data in rows}
        return levels


def stored_series(
    reader: SqlReader,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
) -> list[StoredSeries]:
    """Return the series of a job, or those of some names and ranks, by name, rank and role."""
    found = series_of(reader, job, names, ranks)
    keys = {each.id for each in found}
    loose, hidden = _loose(reader, sorted(keys)), _with_hidden(reader, sorted(keys))
    come: dict[int, list[Any]] = defaultdict(list)
    for (data,) in reader.rows(_ARRIVED, job) if keys else ():
        for key, part in parts(data, keys):
            come[key].append(part)
    tops = {key: b"".join([*loose.get(key, ()), piece(come.get(key, ()))[1]]) for key in keys}
    return [StoredSeries(reader, one, unpack(tops[one.id]), one.id in hidden) for one in found]


def series_of(
    reader: SqlReader,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
) -> list[SeriesKey]:
    """Return what a job's series are, by name, rank and role."""
    rows = (SeriesKey(key, job, *its) for key, *its in reader.rows(_SERIES, job))
    wanted = (
        each
        for each in rows
        if (names is None or each.name in names) and (ranks is None or each.rank in ranks)
    )
    return sorted(wanted, key=lambda each: (each.name, each.rank, each.role))


def _scale(scales: Sequence[int], points: int, buckets: int) -> int:
    """Return how many points a bucket is to have."""
    return next((scale for scale in scales if points // scale >= buckets), scales[-1])


def _loose(reader: SqlReader, keys: Sequence[int]) -> Mapping[int, list[bytes]]:
    found: dict[int, list[bytes]] = defaultdict(list)
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        words = f"{_LOOSE} ({marks(len(some))}) ORDER BY series, number"
        for key, data in reader.rows(words, *some):
            found[key].append(data)
    return found


def _with_hidden(reader: SqlReader, keys: Sequence[int]) -> set[int]:
    found: set[int] = set()
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        found |= {key for (key,) in reader.rows(f"{_WITH_HIDDEN} ({marks(len(some))})", *some)}
    return found
