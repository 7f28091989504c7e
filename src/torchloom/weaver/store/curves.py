"""What readers want of metrics: curves at any resolution, points, the newest and the best."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torchloom.errors import UserError
from torchloom.weaver.store.buckets import FIELDS, Buckets, coarser, columns
from torchloom.weaver.store.news import News, Segment, news
from torchloom.weaver.store.points import HIGHEST, LOWEST, Points
from torchloom.weaver.store.rows import Point
from torchloom.weaver.store.snapshot import Snapshots
from torchloom.weaver.store.strands import Series, Strand, series_of, strands

__all__ = [
    "BadCursor",
    "Best",
    "Curve",
    "News",
    "Page",
    "Segment",
    "Series",
    "best",
    "curves",
    "last",
    "names",
    "news",
    "newest",
    "points",
    "series",
]


_FEW = 256  # points that are looked through one by one


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


@dataclass(frozen=True, slots=True)
class Page:
    """Some points, and where to read on from."""

    points: list[Point]
    next: str | None


@dataclass(frozen=True, slots=True)
class Best:
    """The lowest and the highest finite value of a series, each where it was first."""

    name: str
    rank: int
    role: str
    low: Point | None
    high: Point | None
    count: int


class BadCursor(UserError, ValueError):
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
) -> list[Series]:
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
) -> list[Curve]:
    """Return curves from a step to another, at most so many buckets each."""
    found, ends = [], _ends(first, last)
    with records.snapshot() as reader:
        for strand in strands(reader, job, names, ranks):
            data = strand.level(*ends, buckets)
            if data:
                found.append(_curve(strand.series, _at_most(columns(data), buckets)))
    return found


def points(
    records: Snapshots,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 10_000,
    cursor: str | None = None,
) -> Page:
    """Return points as they were logged, by series and step, so many at a time."""
    found: list[Point] = []
    (low, high), (passed, after) = _ends(first, last), _place(cursor)
    with records.snapshot() as reader:
        for strand in strands(reader, job, names, ranks):
            key = (strand.series.name, strand.series.rank, strand.series.role)
            if passed is not None and key < passed:
                continue
            begin = max(low, after + 1) if key == passed else low
            for block in strand.blocks(begin, high):
                found += _rows(strand.series, block.cut(0, limit + 1 - len(found)))
                if len(found) > limit:
                    return Page(found[:limit], _mark(found[limit - 1]))
    return Page(found, None)


def newest(
    records: Snapshots,
    job: str,
    names: Collection[str] | None = None,
    ranks: Collection[int] | None = None,
    first: int | None = None,
    limit: int | None = None,
) -> list[Point]:
    """Return of each series the last points from a step on, by series and step."""
    found: list[Point] = []
    with records.snapshot() as reader:
        for strand in strands(reader, job, names, ranks):
            blocks = _newest(strand, *_ends(first, None), limit)
            for block in reversed(list(blocks)):
                found += _rows(strand.series, block)
    return found


def last(records: Snapshots, job: str) -> list[Point]:
    """Return the point of the highest step of every series."""
    return newest(records, job, limit=1)


def best(records: Snapshots, job: str) -> list[Best]:
    """Return the extremes of every series."""
    with records.snapshot() as reader:
        found = strands(reader, job)
        return [each for strand in found if (each := _best(strand)) is not None]


def _best(strand: Strand) -> Best | None:
    data = strand.level(LOWEST, HIGHEST, 1)
    if not data:
        return None
    known, its = columns(data), strand.series
    low = _where(strand, known, "min", min)
    high = _where(strand, known, "max", max)
    return Best(its.name, its.rank, its.role, low, high, sum(known.count))


class _Pick(Protocol):
    def __call__(self, values: list[float], /) -> float: ...


def _where(
    strand: Strand, known: Buckets, name: Literal["min", "max"], pick: _Pick
) -> Point | None:
    column = [
        value if math.isfinite(value) else _finite(strand, known, place, value, pick)
        for place, value in enumerate(getattr(known, name))
    ]
    numbers = [value for value in column if value == value]
    if not numbers:
        return None
    value = pick(numbers)
    place = column.index(value)
    ends = (known.step_first[place], known.step_last[place])
    if known.count[place] > _FEW:
        return _where(strand, columns(strand.level(*ends, _FEW)), name, pick)
    for block in strand.blocks(*ends):
        if value in block.values:
            at = block.values.index(value)
            return next(_rows(strand.series, block.cut(at, at + 1)))
    raise AssertionError("a bucket has a value that none of its points has")


def _finite(strand: Strand, known: Buckets, place: int, value: float, pick: _Pick) -> float:
    """Return the extreme of what is finite in a bucket that has something infinite; else NaN."""
    if math.isnan(value):
        return value
    blocks = strand.blocks(known.step_first[place], known.step_last[place])
    numbers = [number for block in blocks for number in block.values if math.isfinite(number)]
    return pick(numbers) if numbers else math.nan


def _newest(strand: Strand, first: int, last: int, limit: int | None) -> Iterator[Points]:
    wanted = limit
    for block in strand.blocks(first, last, newest=True):
        if wanted is None:
            yield block
            continue
        if wanted <= 0:
            return
        yield block.cut(max(0, len(block) - wanted), len(block))
        wanted -= len(block)


def _rows(series: Series, block: Points) -> Iterator[Point]:
    name, rank, role = series.name, series.rank, series.role
    for step, generation, time, value in zip(
        block.steps, block.generations, block.times, block.values, strict=True
    ):
        yield Point(name, rank, step, generation, time, value, role)


def _curve(series: Series, buckets: Buckets) -> Curve:
    lists = (list(getattr(buckets, name)) for name in FIELDS)
    return Curve(series.name, series.rank, series.role, *lists)


def _at_most(fine: Buckets, buckets: int) -> Buckets:
    return coarser(fine, -(-len(fine) // max(1, buckets)))


def _ends(first: int | None, last: int | None) -> tuple[int, int]:
    low = LOWEST if first is None else max(first, LOWEST)
    return low, HIGHEST if last is None else min(last, HIGHEST)


def _mark(point: Point) -> str:
    """Return where a page ends, as words that say nothing to anybody else."""
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
        raise BadCursor(cursor) from error
