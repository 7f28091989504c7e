"""A job's records go from the database little by little; those of others stay, and go on coming."""

from collections.abc import Iterator

import pytest

from torchloom.messages.plane import VERSION, Event, Head, Message, Metrics
from torchloom.weaver.store import DatabasePlace, NumberedBatch, PlaneStore
from torchloom.weaver.store.series.ingest import LogLimits
from torchloom.weaver.store.series.records import ROWS, RecordRemoval

from .test_records import write


def told(job: str, points: int) -> NumberedBatch:
    """Return what a rank of a job tells: a curve of so many points, and an event."""
    head = Head(VERSION, job, 0, 0, f"life-{job}")
    records: list[Message] = [
        Metrics(head, ("loss",), tuple((n, float(n), n / 2) for n in range(points))),
        Event(head, "nan", 3, 5.0, {}),
    ]
    return NumberedBatch(head, 1, records)


def known(store: PlaneStore, job: str) -> tuple[int, int, int, list[str]]:
    records = store.records
    counts = (len(records.points(job)), len(records.events(job)), len(records.received(job)))
    return (*counts, records.names(job))


@pytest.fixture
def rests() -> list[float]:
    return []


@pytest.fixture
def forgetting(
    place: DatabasePlace, store: PlaneStore, rests: list[float]
) -> Iterator[RecordRemoval]:
    found = RecordRemoval(place, rests.append)
    yield found
    found.close()


def test_all_of_one_job_goes_and_nothing_of_another(
    store: PlaneStore, forgetting: RecordRemoval
) -> None:
    write(store, told("old", 30), told("new", 20))

    gone = forgetting.job("old")

    assert gone >= 4
    assert known(store, "old") == (0, 0, 0, [])
    assert known(store, "new") == (20, 1, 1, ["loss"])
    assert forgetting.job("old") == 0


def test_metrics_can_go_alone(store: PlaneStore, forgetting: RecordRemoval) -> None:
    write(store, told("old", 30), told("new", 20))
    assert forgetting.has_points("old")

    forgetting.points("old")

    assert known(store, "old") == (0, 1, 1, ["loss"])
    assert known(store, "new") == (20, 1, 1, ["loss"])
    assert not forgetting.has_points("old")
    assert forgetting.has_points("new")


@pytest.mark.parametrize("enough", [1, 1 << 16])  # merged at once, or not yet
def test_a_job_that_goes_on_after_its_metrics_went_has_curves_again(
    enough: int, store: PlaneStore, forgetting: RecordRemoval
) -> None:
    ingest = store.ingest(LogLimits(enough=enough))  # it has the series in mind
    batch, later = told("old", 30), told("old", 5)
    ingest.write([batch])

    forgetting.points("old")
    ingest.write([NumberedBatch(later.head, 3, later.records)])

    assert [point.step for point in store.records.points("old")] == [0, 1, 2, 3, 4]
    ingest.close()


def test_whoever_stores_gets_in_between(place: DatabasePlace, store: PlaneStore) -> None:
    events = [
        Event(Head(VERSION, "old", 0, 0, "life"), "note", n, 5.0, {}) for n in range(3 * ROWS)
    ]
    write(store, NumberedBatch(events[0].head, 1, list(events)))
    left: list[int] = []

    def rest(seconds: float) -> None:
        assert seconds > 0.0
        left.append(len(store.records.events("old", limit=10 * ROWS)))
        write(store, told(f"new-{len(left)}", 10))  # in the middle of it

    forgetting = RecordRemoval(place, rest)
    forgetting.job("old")
    forgetting.close()

    assert left == [2 * ROWS, ROWS, 0]
    assert [known(store, f"new-{n}")[0] for n in (1, 2, 3)] == [10, 10, 10]
