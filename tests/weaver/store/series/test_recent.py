"""The last while of a metric: all of it, whatever was told long before, and of every rank alike."""

from pathlib import Path

import pytest

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import DatabasePlace, NumberedBatch, PlaneStore, open_store
from torchloom.weaver.store.series.curves import Recent, recent
from torchloom.weaver.store.series.ingest import LogLimits


def told(store: PlaneStore, rank: int, *rows: tuple[int, float, float]) -> None:
    ingest = store.ingest(
        LogLimits(enough=1)
    )  # sealed at once, so that there are levels to look at
    head = Head(VERSION, "job", 0, rank, f"life-{rank}")
    ingest.write(
        [NumberedBatch(head, 1, [Metrics(head, ("took", "loss"), tuple((*r, 1.0) for r in rows))])]
    )
    ingest.close()


def shown(found: list[Recent]) -> dict[int, list[tuple[float, float]]]:
    return {one.series.rank: list(zip(one.times, one.max, strict=True)) for one in found}


@pytest.mark.parametrize("before", [0, 30_000])
def test_a_while_has_every_point_that_fits_however_much_was_told_before(
    tmp_path: Path, before: int
) -> None:
    store = open_store(DatabasePlace(tmp_path))
    fast = [(step, float(step), step % 7 + 0.5) for step in range(before + 500)]
    behind = [(step // 10, float(step), 9.0) for step in range(0, before + 490, 10)]
    told(store, 0, *fast)
    told(store, 1, *behind)  # at other steps at the same time

    found = shown(recent(store.records, "job", "took", [0, 1], span=199, buckets=400))
    store.close()

    since = before + 499 - 199
    assert found[0] == [(time, value) for _, time, value in fast if time >= since]
    assert found[1] == [(time, value) for _, time, value in behind if time >= since]


def test_no_peak_is_lost_in_few_buckets_and_who_fell_silent_has_nothing(tmp_path: Path) -> None:
    store = open_store(DatabasePlace(tmp_path))
    told(store, 0, *((step, float(step), 99.0 if step == 9500 else 1.0) for step in range(10_000)))
    told(store, 1, *((step, float(step), 1.0) for step in range(100)))

    found = shown(recent(store.records, "job", "took", [0, 1], span=1000, buckets=20))
    nobody = recent(store.records, "job", "took", [7], span=1000, buckets=20)
    store.close()

    assert (max(value for _, value in found[0]), found[1], nobody) == (99.0, [], [])
    assert 10 <= len(found[0]) <= 50
