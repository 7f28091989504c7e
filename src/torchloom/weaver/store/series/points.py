"""Points of one series and their summaries, as columns and as the bytes that the database keeps.

The bytes are a row of pieces, each a header (generation, number of points), then all steps, all
times and all values: 8 bytes each, little-endian, whatever the machine.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from math import isnan, nan
from operator import lt
from typing import Any, TypeAlias

PIECE = struct.Struct("<qq")
WIDTH = 8  # bytes of a number
LOWEST, HIGHEST = -(2**63), 2**63 - 1  # steps that a column takes
_IS_FOREIGN = sys.byteorder != "little"
_RECORD = struct.Struct("<qII")


@dataclass(frozen=True, slots=True)
class Points:
    """Equally long columns."""

    steps: "array[int]"
    generations: "array[int]"
    times: "array[float]"
    values: "array[float]"

    def __len__(self) -> int:
        return len(self.steps)

    def cut(self, start: int, stop: int) -> "Points":
        """Return the points from one place to before another."""
        part = slice(start, stop)
        return Points(self.steps[part], self.generations[part], self.times[part], self.values[part])

    def pick(self, places: Sequence[int]) -> "Points":
        """Return the points at these places, in their order."""
        return Points(
            array("q", map(self.steps.__getitem__, places)),
            array("q", map(self.generations.__getitem__, places)),
            array("d", map(self.times.__getitem__, places)),
            array("d", map(self.values.__getitem__, places)),
        )

    def between(self, first: int, last: int) -> "Points":
        """Return those of these steps, both ends included; they must be in order."""
        return self.cut(bisect_left(self.steps, first), bisect_right(self.steps, last))

    def before(self, other: "Points") -> "Points":
        """Return these and then the others."""
        return Points(
            self.steps + other.steps,
            self.generations + other.generations,
            self.times + other.times,
            self.values + other.values,
        )


def joined(parts: Sequence[Points]) -> Points:
    """Return the points of all, one after the other."""
    return Points(
        array("q", b"".join(part.steps.tobytes() for part in parts)),
        array("q", b"".join(part.generations.tobytes() for part in parts)),
        array("d", b"".join(part.times.tobytes() for part in parts)),
        array("d", b"".join(part.values.tobytes() for part in parts)),
    )


def nothing() -> Points:
    """Return no points."""
    return Points(array("q"), array("q"), array("d"), array("d"))


def resolve(points: Points) -> tuple[Points, Points]:
    """Return what is shown, by step, and what a higher generation hides.

    Points stand in the order of their coming; of one generation the later counts.
    """
    steps, generations = points.steps, points.generations
    if all(map(lt, steps, islice(steps, 1, None))):
        return points, nothing()
    shown: dict[int, int] = {}
    hidden: list[int] = []
    for place, step in enumerate(steps):
        other = shown.setdefault(step, place)
        if generations[place] < generations[other]:
            hidden.append(place)
            continue
        if generations[place] > generations[other]:
            hidden.append(other)
        shown[step] = place
    return points.pick([shown[step] for step in sorted(shown)]), points.pick(hidden)


def pack(points: Points) -> bytes:
    """Return the bytes of points, a piece for each run of one generation."""
    if not len(points):
        return b""
    if points.generations.count(points.generations[0]) == len(points):
        return _piece(points)
    parts, start = [], 0
    for _, run in groupby(points.generations):
        stop = start + sum(1 for _ in run)
        parts.append(_piece(points.cut(start, stop)))
        start = stop
    return b"".join(parts)


def unpack(data: bytes) -> Points:
    """Return the points of such bytes."""
    generations = array("q")
    columns: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for generation, count, *found in pieces(data):
        generations.extend(array("q", [generation]) * count)
        for column, part in zip(columns, found, strict=True):
            column.append(part)
    steps, times, values = (b"".join(column) for column in columns)
    return Points(ints(steps), generations, floats(times), floats(values))


def pieces(data: bytes) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
    """Yield generation, number of points, and the bytes of steps, times and values."""
    at = 0
    while at < len(data):
        generation, count = PIECE.unpack_from(data, at)
        start, size = at + PIECE.size, count * WIDTH
        at = start + 3 * size
        times, values = start + size, start + 2 * size
        yield generation, count, data[start:times], data[times:values], data[values:at]


def piece(parts: Iterable[tuple[int, int, bytes, bytes, bytes]]) -> tuple[int, bytes]:
    """Return how many points such parts have, and their bytes, in as few pieces as they take."""
    total, found = 0, []
    for generation, run in groupby(parts, key=lambda part: part[0]):
        _, counts, steps, times, values = zip(*run, strict=True)
        count = sum(counts)
        found += [PIECE.pack(generation, count), *steps, *times, *values]
        total += count
    return total, b"".join(found)


def ints(data: bytes) -> "array[int]":
    """Return whole numbers from their bytes."""
    return _swapped(array("q", data))


def floats(data: bytes) -> "array[float]":
    """Return real numbers from their bytes."""
    return _swapped(array("d", data))


def raw(numbers: "array[int] | array[float]") -> bytes:
    """Return the bytes of numbers."""
    return _swapped(numbers[:]).tobytes() if _IS_FOREIGN else numbers.tobytes()


def _piece(points: Points) -> bytes:
    header = PIECE.pack(points.generations[0], len(points))
    return header + raw(points.steps) + raw(points.times) + raw(points.values)


def _swapped(numbers: "array[int] | array[float]") -> "array":  # type: ignore[type-arg]
    if _IS_FOREIGN:
        numbers.byteswap()
    return numbers


Part: TypeAlias = tuple[int, int, bytes, bytes, bytes]  # generation, points, steps, times, values


def record(generation: int, ids: Sequence[int], count: int, content: bytes) -> bytes:
    """Return the bytes of one record; `content` is steps, times and values."""
    return _RECORD.pack(generation, count, len(ids)) + raw(array("q", ids)) + content


def parts(data: bytes, wanted: Container[int] | None = None) -> Iterator[tuple[int, Part]]:
    """Yield what came for each series, or for those that are wanted."""
    at, known = 0, dict[bytes, tuple[tuple[int, int], ...]]()
    while at < len(data):
        generation, count, width = _RECORD.unpack_from(data, at)
        start = at + _RECORD.size
        times = start + width * WIDTH
        found = known.get(data[start:times])
        if found is None:
            ids = enumerate(ints(data[start:times]))
            found = tuple((n, series) for n, series in ids if wanted is None or series in wanted)
            known[data[start:times]] = found
        size = count * WIDTH
        at = times + (2 + width) * size
        if found:
            steps, moments = data[times : times + size], data[times + size : times + 2 * size]
            first = times + 2 * size
            for n, series in found:
                values = data[first + n * size : first + (n + 1) * size]
                yield series, (generation, count, steps, moments, values)


SIZE = 64
FIELDS = ("step_first", "step_last", "min", "max", "last", "time", "count", "nans")
_SMALL = 8  # groups that are quicker gone through column by column
_ARE_FLOATS = (False, False, True, True, True, True, False, False)


@dataclass(frozen=True, slots=True)
class PointBuckets:
    """Equally long columns. NaN counts in `count` and `nans` alone, unless all of it is NaN."""

    step_first: Sequence[int]
    step_last: Sequence[int]
    min: Sequence[float]
    max: Sequence[float]
    last: Sequence[float]
    time: Sequence[float]
    count: Sequence[int]
    nans: Sequence[int]

    def __len__(self) -> int:
        return len(self.step_first)


def columns(data: bytes) -> PointBuckets:
    """Return buckets from their bytes."""
    n, x = ints(data), floats(data)
    return PointBuckets(n[0::8], n[1::8], x[2::8], x[3::8], x[4::8], x[5::8], n[6::8], n[7::8])


def summarise(points: Points, scale: int) -> bytes:
    """Return a bucket for every `scale` points; they must be in order."""
    count, values = len(points), points.values.tolist()
    steps, times = points.steps, points.times
    counts = array("q", [scale]) * (count // scale)
    if count % scale:
        counts.append(count % scale)
    return _joined(
        PointBuckets(
            steps[::scale],
            _ends(steps, scale),
            _extreme(values, scale, min),
            _extreme(values, scale, max),
            _ends(points.values, scale),
            _ends(times, scale),
            counts,
            _nans(values, scale),
        )
    )


def coarsen(data: bytes, group: int) -> bytes:
    """Return a bucket for every `group` buckets."""
    return data if group == 1 else _joined(coarser(columns(data), group))


def coarser(fine: PointBuckets, group: int) -> PointBuckets:
    """Return a bucket for every `group` buckets, as columns."""
    return PointBuckets(
        fine.step_first[::group],
        _ends(fine.step_last, group),
        _extreme(list(fine.min), group, min),
        _extreme(list(fine.max), group, max),
        _ends(fine.last, group),
        _ends(fine.time, group),
        _sums(list(fine.count), group),
        _sums(fine.nans, group),
    )


def whole(data: bytes) -> bytes:
    """Return one bucket for all of these."""
    return coarsen(data, max(1, len(data) // SIZE))


def _joined(buckets: PointBuckets) -> bytes:
    numbers = array("q", bytes(SIZE * len(buckets)))
    for place, name in enumerate(FIELDS):
        column = getattr(buckets, name)
        if not isinstance(column, array):
            column = array("d" if _ARE_FLOATS[place] else "q", column)
        numbers[place::8] = array("q", column.tobytes())
    return raw(numbers)


def _ends(column: Sequence[Any], group: int) -> Sequence[Any]:
    found = list(column[group - 1 :: group])
    return [*found, column[-1]] if len(column) % group else found


def _extreme(values: list[float], group: int, pick: Callable[..., float]) -> Sequence[float]:
    if group == 1:
        return values
    if not isnan(sum(values)):
        full = len(values) // group * group if group <= _SMALL else 0
        found = list(map(pick, *(values[at:full:group] for at in range(group)))) if full else []
        return found + [pick(values[at : at + group]) for at in range(full, len(values), group)]
    cuts = (values[at : at + group] for at in range(0, len(values), group))
    known = ([value for value in cut if value == value] for cut in cuts)
    return [pick(cut) if cut else nan for cut in known]


def _nans(values: list[float], group: int) -> Sequence[int]:
    if not isnan(sum(values)):
        return array("q", [0]) * (-(-len(values) // group))
    return _sums([value != value for value in values], group)


def _sums(column: Sequence[int], group: int) -> Sequence[int]:
    if not any(column):
        return array("q", [0]) * (-(-len(column) // group))
    if group <= _SMALL and len(column) % group == 0:
        return list(map(sum, zip(*(column[at::group] for at in range(group)), strict=True)))
    return [sum(column[at : at + group]) for at in range(0, len(column), group)]
