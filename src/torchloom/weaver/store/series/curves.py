"""What readers want of metrics: curves at any resolution, points, the newest and the best."""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Protocol

from torchloom.errors import UserError
from torchloom.weaver.store.rows import PointRow
from torchloom.weaver.store.series.points import (
    FIELDS,
    HIGHEST,
    LOWEST,
    PointBuckets,
    Points,
    coarser,
    columns,
    floats,
    ints,
    parts,
    pieces,
    summarise,
)
from torchloom.weaver.store.series.stored_series import (
    SeriesKey,
    StoredSeries,
    series_of,
    stored_series,
)
from torchloom.weaver.store.series.tables import HIDDEN, RecordsSnapshot, Snapshots, marks

_PROGRESS = "SELECT last, dropped FROM progress"
_SINCE = "FROM arrivals WHERE number > ?"
_IN_CHUNKS = (
    "FROM chunks JOIN series ON series.id = chunks.series"
    f" WHERE chunks.upto > ? AND chunks.since <= ? AND chunks.kind <> {HIDDEN}"
)
_NAMES = "SELECT id, job, name, rank, role FROM series WHERE id IN"
_AT_ONCE = 500
_FEW = 256  # points that are looked through one by one


@dataclass(frozen=True, slots=True)
class NewsSegment:
    """Points that arrived together for one series, as reported; `position` says after which
    number there is only what came later."""

    job: str
    name: str
    rank: int
    role: str
    generation: int
    steps: Sequence[int]
    times: Sequence[float]
    values: Sequence[float]
    position: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """New points, and the cursor after them; not whole where some may be repeated."""

    segments: list[NewsSegment]
    next: int
    is_whole: bool = True


def news(
    records: Snapshots,
    after: int | None = None,
    jobs: Collection[str] | None = None,
    limit: int = 100_000,
) -> News:
    """Return what came after a number, about so many points; without one only the number of now."""
    with records.snapshot() as reader:
        ((last, dropped),) = reader.rows(_PROGRESS)
        if after is None or after == last:
            return News([], last)
        if after > last:  # it is of another database
            return News([], last, is_whole=False)
        if after >= dropped:
            found, end = _logged(reader, after, jobs, limit)
            return News(_named(reader, found), last if end is None else end)
        found, end = _chunked(reader, after, dropped, jobs, limit)
        return News(_named(reader, found), end, is_whole=False)


_Found = tuple[int, int, int, bytes, bytes, bytes]  # series, position, generation, the columns


def _logged(
    reader: RecordsSnapshot, after: int, jobs: Collection[str] | None, limit: int
) -> tuple[list[_Found], int | None]:
    """Return points of the log, and the number of the last that was read where some are left."""
    words, values = _of(_SINCE, jobs, "job")
    sizes = reader.rows(f"SELECT number, points {words} ORDER BY number", after, *values)
    totals = accumulate(points for _, points in sizes)
    full = (number for (number, _), total in zip(sizes, totals, strict=True) if total >= limit)
    end = next(full, None)
    query = f"SELECT number, data {words} AND number <= ? ORDER BY number"
    rows = reader.rows(query, after, *values, HIGHEST if end is None else end)
    found = [(key, number, part[0], *part[2:]) for number, d in rows for key, part in parts(d)]
    return found, end


def _chunked(
    reader: RecordsSnapshot, after: int, dropped: int, jobs: Collection[str] | None, limit: int
) -> tuple[list[_Found], int]:
    """Return the points of all chunks that have some of those that the log has dropped.

    What came up to a number is in chunks that were begun by then; so they are read in that order.
    """
    words, values = _of(_IN_CHUNKS, jobs, "series.job")
    end, count = dropped, 0
    asked = (after, dropped, *values)
    query = f"SELECT chunks.since, sum(chunks.count) {words} GROUP BY chunks.since ORDER BY 1"
    for since, points in reader.rows(query, *asked):
        count += points
        if count >= limit and since > after:
            end = since
            break
    query = f"SELECT chunks.series, chunks.data {words} ORDER BY chunks.series, chunks.number"
    rows = reader.rows(query, after, end, *values)
    return [(key, end, each[0], *each[2:]) for key, data in rows for each in pieces(data)], end


def _of(words: str, jobs: Collection[str] | None, column: str) -> tuple[str, tuple[str, ...]]:
    if jobs is None:
        return words, ()
    wanted = tuple(jobs) or ("",)
    return f"{words} AND {column} IN ({marks(len(wanted))})", wanted


def _named(reader: RecordsSnapshot, found: Sequence[_Found]) -> list[NewsSegment]:
    keys = sorted({each[0] for each in found})
    names: dict[int, tuple[str, str, int, str]] = {}
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        for key, *its in reader.rows(f"{_NAMES} ({marks(len(some))})", *some):
            names[key] = tuple(its)
    return [
        NewsSegment(*names[key], generation, ints(steps), floats(times), floats(values), number)
        for key, number, generation, steps, times, values in found
        if key in names
    ]


@dataclass(frozen=True, slots=True)
class Recent:
    """The end of a series, by step; each bucket has the time of its last point."""

    series: SeriesKey
    times: list[float]
    max: list[float]


def recent(
    records: Snapshots,
    job: str,
    name: str,
    ranks: Collection[int],
    span: float,
    buckets: int,
) -> list[Recent]:
    """Return a metric of some ranks in the last seconds, in at least so many buckets."""
    with records.snapshot() as reader:
        looks = [
            (each, _look(each, LOWEST, buckets))
            for each in stored_series(reader, job, [name], ranks)
        ]
        known = [(one, found) for one, found in looks if len(found)]
        since = max((found.time[-1] for _, found in known), default=0.0) - span
        return [_since(one, found, since, buckets) for one, found in known]


def _since(one: StoredSeries, found: PointBuckets, since: float, buckets: int) -> Recent:
    """Return the end of a series; where a look at all of it was too coarse for that, by another."""
    begin = bisect_left(found.time, since)
    count = len(found) - begin
    if 0 < count < min(buckets // 2, sum(found.count[begin:])):
        found = _look(one, found.step_first[begin], buckets)
        begin = bisect_left(found.time, since)
    return Recent(one.series, list(found.time[begin:]), list(found.max[begin:]))


def _look(one: StoredSeries, first: int, buckets: int) -> PointBuckets:
    fine = columns(one.level(first, HIGHEST, buckets))
    return coarser(fine, max(1, len(fine) // buckets))


__all__ = [
    "BadPointCursor",
    "Best",
    "Curve",
    "News",
    "PointPage",
    "NewsSegment",
    "ReplacedPoints",
    "SeriesKey",
    "best",
    "curves",
    "last",
    "names",
    "news",
    "newest",
    "points",
    "series",
]


@dataclass(frozen=True, slots=True)
class ReplacedPoints:
    """What one generation reported of steps that a later one has repeated."""

    generation: int
    buckets: PointBuckets


@dataclass(frozen=True, slots=True)
class Curve:
    """A series as buckets: equally long columns, by step; one bucket's steps are no other's."""

    name: str
    rank: int
    role: str
    step_first: Sequence[int]
    step_last: Sequence[int]
    min: Sequence[float]  # of what is not NaN
    max: Sequence[float]
    last: Sequence[float]  # of the last step
    time: Sequence[float]
    count: Sequence[int]
    nans: Sequence[int]
    has_replaced: bool = False  # a later generation has repeated steps
    replaced: Sequence[ReplacedPoints] = ()  # by generation, where they were asked for


@dataclass(frozen=True, slots=True)
class PointPage:
    """Some points, and where to read on from."""

    points: list[PointRow]
    next: str | None


@dataclass(frozen=True, slots=True)
class Best:
    """The lowest and the highest finite value of a series, each where it was first."""

    name: str
    rank: int
    role: str
    low: PointRow | None
    high: PointRow | None
    count: int


class BadPointCursor(UserError, ValueError):
    """What was handed back is no place to read on from."""

    code = "bad_cursor"

    def __init__(self, cursor: str) -> None:
        super().__init__(f"no page ends at {cursor[:80]!r}; begin without a cursor")


def names(records: Snapshots, job: str) -> list[str]:
    """Return what a job's metrics are called."""
    return sorted({each.name for each in series(records, job)})


def series(
    records: Snapshots,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
) -> list[SeriesKey]:
    """Return a job's series, by name, rank and role."""
    with records.snapshot() as reader:
        return series_of(reader, job, names, ranks)


def curves(
    records: Snapshots,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    first: int | None = None,
    last: int | None = None,
    buckets: int = 1000,
    replaced: bool = False,
) -> list[Curve]:
    """Return curves from a step to another, at most so many buckets each.

    With `replaced` each has the points that later generations have replaced: in as many buckets
    together, and at least one for each generation.
    """
    found, ends = [], _ends(first, last)
    with records.snapshot() as reader:
        for one in stored_series(reader, job, names, ranks):
            data = one.level(*ends, buckets)
            if data:
                older = _replaced(one, ends, buckets) if replaced else []
                fine = _at_most(columns(data), buckets)
                found.append(_curve(one.series, fine, bool(older) or one.has_replaced(), older))
    return found


def _replaced(one: StoredSeries, ends: tuple[int, int], buckets: int) -> list[ReplacedPoints]:
    known = one.replaced(*ends)
    scale = max(1, -(-sum(map(len, known.values())) // max(1, buckets)))
    drawn = ((key, columns(summarise(points, scale))) for key, points in known.items())
    return [ReplacedPoints(key, PointBuckets(**_lists(found))) for key, found in drawn]


def points(
    records: Snapshots,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 10_000,
    cursor: str | None = None,
) -> PointPage:
    """Return points as they were logged, by series and step, so many at a time."""
    found: list[PointRow] = []
    (low, high), (passed, after) = _ends(first, last), _place(cursor)
    with records.snapshot() as reader:
        for one in stored_series(reader, job, names, ranks):
            key = (one.series.name, one.series.rank, one.series.role)
            if passed is not None and key < passed:
                continue
            begin = max(low, after + 1) if key == passed else low
            for block in one.blocks(begin, high):
                found += _rows(one.series, block.cut(0, limit + 1 - len(found)))
                if len(found) > limit:
                    return PointPage(found[:limit], _mark(found[limit - 1]))
    return PointPage(found, None)


def newest(
    records: Snapshots,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    first: int | None = None,
    limit: int | None = None,
) -> list[PointRow]:
    """Return of each series the last points from a step on, by series and step."""
    found: list[PointRow] = []
    with records.snapshot() as reader:
        for one in stored_series(reader, job, names, ranks):
            blocks = _newest(one, *_ends(first, None), limit)
            for block in reversed(list(blocks)):
                found += _rows(one.series, block)
    return found


def last(records: Snapshots, job: str) -> list[PointRow]:
    """Return the point of the highest step of every series."""
    return newest(records, job, limit=1)


def best(records: Snapshots, job: str) -> list[Best]:
    """Return the extremes of every series."""
    with records.snapshot() as reader:
        found = stored_series(reader, job)
        return [each for one in found if (each := _best(one)) is not None]


def _best(one: StoredSeries) -> Best | None:
    data = one.level(LOWEST, HIGHEST, 1)
    if not data:
        return None
    known, its = columns(data), one.series
    low = _where(one, known, "min", min)
    high = _where(one, known, "max", max)
    return Best(its.name, its.rank, its.role, low, high, sum(known.count))


class _Pick(Protocol):
    def __call__(self, values: list[float], /) -> float: ...


def _where(
    one: StoredSeries, known: PointBuckets, name: Literal["min", "max"], pick: _Pick
) -> PointRow | None:
    column = [
        value if math.isfinite(value) else _finite(one, known, place, value, pick)
        for place, value in enumerate(getattr(known, name))
    ]
    numbers = [value for value in column if value == value]
    if not numbers:
        return None
    value = pick(numbers)
    place = column.index(value)
    ends = (known.step_first[place], known.step_last[place])
    if known.count[place] > _FEW:
        return _where(one, columns(one.level(*ends, _FEW)), name, pick)
    for block in one.blocks(*ends):
        if value in block.values:
            at = block.values.index(value)
            return next(_rows(one.series, block.cut(at, at + 1)))
    raise AssertionError("a bucket has a value that none of its points has")


def _finite(one: StoredSeries, known: PointBuckets, place: int, value: float, pick: _Pick) -> float:
    """Return the extreme of what is finite in a bucket that has something infinite; else NaN."""
    if math.isnan(value):
        return value
    blocks = one.blocks(known.step_first[place], known.step_last[place])
    numbers = [number for block in blocks for number in block.values if math.isfinite(number)]
    return pick(numbers) if numbers else math.nan


def _newest(one: StoredSeries, first: int, last: int, limit: int | None) -> Iterator[Points]:
    wanted = limit
    for block in one.blocks(first, last, newest=True):
        if wanted is None:
            yield block
            continue
        if wanted <= 0:
            return
        yield block.cut(max(0, len(block) - wanted), len(block))
        wanted -= len(block)


def _rows(series: SeriesKey, block: Points) -> Iterator[PointRow]:
    name, rank, role = series.name, series.rank, series.role
    for step, generation, time, value in zip(
        block.steps, block.generations, block.times, block.values, strict=True
    ):
        yield PointRow(name, rank, step, generation, time, value, role)


def _curve(
    series: SeriesKey, buckets: PointBuckets, has_replaced: bool, replaced: list[ReplacedPoints]
) -> Curve:
    columns = _lists(buckets)
    return Curve(
        series.name,
        series.rank,
        series.role,
        **columns,
        has_replaced=has_replaced,
        replaced=replaced,
    )


def _lists(buckets: PointBuckets) -> dict[str, Any]:
    return {name: list(getattr(buckets, name)) for name in FIELDS}


def _at_most(fine: PointBuckets, buckets: int) -> PointBuckets:
    return coarser(fine, -(-len(fine) // max(1, buckets)))


def _ends(first: int | None, last: int | None) -> tuple[int, int]:
    low = LOWEST if first is None else max(first, LOWEST)
    return low, HIGHEST if last is None else min(last, HIGHEST)


def _mark(point: PointRow) -> str:
    """Return the end of a page as an opaque cursor."""
    return f"{point.step}.{point.rank}.{point.name.encode().hex()}.{point.role.encode().hex()}"


def _place(cursor: str | None) -> tuple[tuple[str, int, str] | None, int]:
    """Return behind which point a page begins."""
    if cursor is None:
        return None, 0
    try:
        step, rank, *words = cursor.split(".")
        name, role = (bytes.fromhex(word).decode() for word in words)
        return (name, int(rank), role), int(step)
    except ValueError as error:
        raise BadPointCursor(cursor) from error
