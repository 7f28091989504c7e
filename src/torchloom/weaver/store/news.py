"""What came since: for those who follow jobs, in the order of its being stored."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchloom.weaver.store.arrivals import parts
from torchloom.weaver.store.points import HIGHEST, floats, ints, pieces
from torchloom.weaver.store.record_tables import HIDDEN
from torchloom.weaver.store.snapshot import Snapshot, Snapshots
from torchloom.weaver.store.sql import marks

_PROGRESS = "SELECT last, dropped FROM progress"
_SINCE = "FROM arrivals WHERE number > ?"
_IN_CHUNKS = (
    "FROM chunks JOIN series ON series.id = chunks.series"
    f" WHERE chunks.upto > ? AND chunks.since <= ? AND chunks.kind <> {HIDDEN}"
)
_NAMES = "SELECT id, job, name, rank, role FROM series WHERE id IN"
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Segment:
    """Points that came together for one series, as they were told; `position` says after which
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
    """What came, and what to ask with next; not whole where some of it may have been heard."""

    segments: list[Segment]
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
    reader: Snapshot, after: int, jobs: Collection[str] | None, limit: int
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
    reader: Snapshot, after: int, dropped: int, jobs: Collection[str] | None, limit: int
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


def _named(reader: Snapshot, found: Sequence[_Found]) -> list[Segment]:
    keys = sorted({each[0] for each in found})
    names: dict[int, tuple[str, str, int, str]] = {}
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        for key, *its in reader.rows(f"{_NAMES} ({marks(len(some))})", *some):
            names[key] = tuple(its)
    return [
        Segment(*names[key], generation, ints(steps), floats(times), floats(values), number)
        for key, number, generation, steps, times, values in found
        if key in names
    ]
