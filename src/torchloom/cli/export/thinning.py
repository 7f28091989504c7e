"""Curves that fit into one file: point by point where there is room, else buckets with no peak
lost."""

from collections.abc import Sequence
from typing import Any

from torchloom.server.charts import columns
from torchloom.weaver.store import RecordStore
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.curves import Curve, MetricSeries

MOST = 4000  # buckets of one curve: more than a screen is wide
TOTAL = 36_000  # buckets of a file, of a hundred bytes at most each
LEAST = 20  # buckets of one curve; where there are so many that less would be left, some go
_FEW = 200  # buckets: before all curves have less, those of further ranks are left out


def drawn(
    records: RecordStore, job: str, total: int = TOTAL
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a job's curves, `total` buckets together at most, and what was left out.

    Half of the room is for the curves that are seen first, those of the lowest ranks.
    """
    every = curves.series(records, job)
    first = _lowest(every)
    others = [one for one in every if one not in first]
    if len(every) * _FEW <= total:
        room = total // 2 if others else total
        return [*_of(records, job, first, room), *_of(records, job, others, total - room)], []
    notes = []
    if others:
        notes.append("Of each metric only the lowest rank is here; the file would be too large.")
    kept = first[: total // LEAST]
    if len(kept) < len(first):
        notes.append(f"{len(first) - len(kept)} metrics are left out; the file would be larger.")
    return _of(records, job, kept, total), notes


def _lowest(every: Sequence[MetricSeries]) -> list[MetricSeries]:
    """Return of each metric the series of the lowest rank, by name."""
    lowest: dict[str, MetricSeries] = {}
    for one in sorted(every, key=lambda one: (one.name, one.rank, one.role)):
        lowest.setdefault(one.name, one)
    return list(lowest.values())


def _of(
    records: RecordStore, job: str, wanted: Sequence[MetricSeries], room: int
) -> list[dict[str, Any]]:
    """Return curves of some series that share the room."""
    if not wanted:
        return []
    share = max(LEAST, min(MOST, room // len(wanted)))
    names, ranks = {one.name for one in wanted}, {one.rank for one in wanted}
    found = curves.curves(records, job, names, ranks, buckets=share)
    kept = {(one.name, one.rank, one.role) for one in wanted}
    return [_shape(one) for one in found if (one.name, one.rank, one.role) in kept]


def _shape(curve: Curve) -> dict[str, Any]:
    """Return a curve as columns; one that has a point in each bucket has no need of buckets."""
    whole = columns(curve)
    times = [round(time, 3) for time in curve.time]
    if all(count == 1 for count in curve.count):
        named = {name: whole[name] for name in ("name", "rank", "role", "steps")}
        return {**named, "times": times, "values": curve.last}
    return {**whole, "times": times}
