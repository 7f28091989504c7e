"""The last while of many series at once: buckets since some time before the newest point of all."""

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass

from torchloom.weaver.store.buckets import Buckets, coarser, columns
from torchloom.weaver.store.points import HIGHEST, LOWEST
from torchloom.weaver.store.snapshot import Snapshots
from torchloom.weaver.store.strands import Series, Strand, strands


@dataclass(frozen=True, slots=True)
class Recent:
    """The end of a series, by step; each bucket has the time of its last point."""

    series: Series
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
    """Return what some ranks told of a metric in the last seconds, in at least so many buckets."""
    with records.snapshot() as reader:
        looks = [
            (each, _look(each, LOWEST, buckets)) for each in strands(reader, job, [name], ranks)
        ]
        known = [(strand, found) for strand, found in looks if len(found)]
        since = max((found.time[-1] for _, found in known), default=0.0) - span
        return [_since(strand, found, since, buckets) for strand, found in known]


def _since(strand: Strand, found: Buckets, since: float, buckets: int) -> Recent:
    """Return the end of a series; where a look at all of it was too coarse for that, by another."""
    begin = bisect_left(found.time, since)
    count = len(found) - begin
    if 0 < count < min(buckets // 2, sum(found.count[begin:])):
        found = _look(strand, found.step_first[begin], buckets)
        begin = bisect_left(found.time, since)
    return Recent(strand.series, list(found.time[begin:]), list(found.max[begin:]))


def _look(strand: Strand, first: int, buckets: int) -> Buckets:
    fine = columns(strand.level(first, HIGHEST, buckets))
    return coarser(fine, max(1, len(fine) // buckets))
