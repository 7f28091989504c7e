"""Summaries of consecutive points: from which step to which, lowest, highest, last, how many.

A bucket is 64 bytes: eight numbers of 8 bytes, little-endian, in the order of `FIELDS`. Buckets
that follow each other are their bytes one after the other, so levels are joined unread.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from torchloom.weaver.store.series.points import Points, floats, ints, raw

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
