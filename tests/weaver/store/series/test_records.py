"""Records are stored once, none is skipped, and of one step the highest generation shows."""

import itertools
import math
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.messages.plane import VERSION, Applied, Event, Head, Message, Metrics
from torchloom.weaver.store import NumberedBatch, PlaneStore
from torchloom.weaver.store.rows import PointRow, RankEventRow, Received
from torchloom.weaver.store.series.tables import RecordsLost

JOBS = itertools.count()


def head(generation: int = 0, rank: int = 0, incarnation: str = "i", job: str = "j") -> Head:
    return Head(VERSION, job, generation, rank, incarnation)


def loss(step: int, value: Any, generation: int = 0, rank: int = 0) -> Metrics:
    return Metrics(head(generation, rank), ("loss",), ((step, 100.0 + step, value),))


def event(step: int, kind: str = "nan") -> Event:
    return Event(head(), kind, step, 5.0, {"step": step})


def write(store: PlaneStore, *batches: NumberedBatch) -> list[int]:
    ingest = store.ingest()
    try:
        return ingest.write(list(batches))
    finally:
        ingest.close()


def test_metrics_and_events_come_back(store: PlaneStore) -> None:
    many = Metrics(head(), ("loss", "lr"), ((1, 10.0, 0.5, 1), (2, 11.0, None, True)))
    batch = NumberedBatch(head(), 1, [many, event(2), Applied(head(), "c1", 7, 0.1, 0.2)])
    began = time.time()

    assert write(store, batch) == [3]
    assert store.records.points("j") == [
        PointRow("loss", 0, 1, 0, 10.0, 0.5),
        PointRow("lr", 0, 1, 0, 10.0, 1.0),
        PointRow("lr", 0, 2, 0, 11.0, 1.0),
    ]
    facts = {"command": "c1", "before": 0.1, "after": 0.2}
    told, done = store.records.events("j")
    assert told == RankEventRow(1, "j", 0, 0, "i", 2, "nan", 2, 5.0, {"step": 2})
    assert done == RankEventRow(2, "j", 0, 0, "i", 3, "applied", 7, done.time, facts)
    assert began <= done.time <= time.time()  # an act has no time of its own
    assert store.records.names("j") == ["loss", "lr"]
    assert store.records.received() == [Received("j", 0, "i", 3, 0)]


def test_ranks_of_two_roles_with_one_number_have_curves_of_their_own(store: PlaneStore) -> None:
    heads = [Head(VERSION, "j", 0, 0, f"life-{role}", role) for role in ("actor", "critic")]
    curves = [Metrics(one, ("loss",), ((1, 10.0, n),)) for n, one in enumerate(heads)]

    write(
        store, *(NumberedBatch(one, 1, [curve]) for one, curve in zip(heads, curves, strict=True))
    )

    assert store.records.points("j") == [
        PointRow("loss", 0, 1, 0, 10.0, 0.0, "actor"),
        PointRow("loss", 0, 1, 0, 10.0, 1.0, "critic"),
    ]


def test_what_is_sent_twice_is_stored_once(store: PlaneStore) -> None:
    first = NumberedBatch(head(), 1, [event(1), event(2)])
    overlapping = NumberedBatch(head(), 2, [event(2), event(3)])

    assert write(store, first) == [2]
    assert write(store, first, overlapping, first) == [2, 3, 3]
    assert [told.step for told in store.records.events("j")] == [1, 2, 3]


def test_a_batch_after_a_gap_waits_for_what_is_missing(store: PlaneStore) -> None:
    late = NumberedBatch(head(), 3, [event(3)], follows=2)

    assert write(store, late) == [0]
    assert write(store, NumberedBatch(head(), 1, [event(1), event(2)]), late) == [2, 3]
    assert [told.step for told in store.records.events()] == [1, 2, 3]


def test_what_a_full_spool_let_go_is_counted_and_skipped(store: PlaneStore) -> None:
    assert write(store, NumberedBatch(head(), 1, [event(1), None, event(3)])) == [3]
    assert write(store, NumberedBatch(head(), 10, [event(10)], dropped=6)) == [10]
    assert write(store, NumberedBatch(head(), 10, [event(10)], dropped=6)) == [10]

    assert [told.number for told in store.records.events()] == [1, 3, 10]
    assert store.records.received() == [Received("j", 0, "i", 10, 6)]


def test_lives_are_numbered_each_for_itself(store: PlaneStore) -> None:
    lives = [head(0, 0, "a"), head(0, 0, "b"), head(0, 1, "a"), head(0, 0, "a", job="k")]

    batches = [NumberedBatch(life, 1, [Event(life, "x", 0, 0.0)]) for life in lives]

    assert write(store, *batches) == [1, 1, 1, 1]
    assert len(store.records.events()) == 4


def test_of_one_step_the_highest_generation_is_shown(store: PlaneStore) -> None:
    rows: list[Message | None] = [loss(1, 1.0, 3), loss(2, 2.0, 3), loss(3, 3.0, 3)]
    again: list[Message | None] = [loss(2, 20.0, 4)]

    write(store, NumberedBatch(head(4, incarnation="new"), 1, again))
    write(store, NumberedBatch(head(3, incarnation="old"), 1, rows))

    shown = [(p.step, p.generation, p.value) for p in store.records.points("j", "loss", 0)]
    assert shown == [(1, 3, 1.0), (2, 4, 20.0), (3, 3, 3.0)]


def test_numbers_that_databases_dislike_come_back(store: PlaneStore) -> None:
    values = [math.inf, -math.inf, 1e308, 10**400, -0.0]
    rows: list[Message | None] = [loss(step, value) for step, value in enumerate(values)]

    write(store, NumberedBatch(head(), 1, [*rows, loss(5, math.nan)]))

    *shown, last = [point.value for point in store.records.points("j")]
    assert shown == [math.inf, -math.inf, 1e308, math.inf, 0.0]
    assert math.isnan(last)


def test_rows_without_a_step_or_time_harm_nobody(store: PlaneStore) -> None:
    rows = (("x", 1.0, 2.0), (2**80, 1.0, 2.0), (1, None, 2.0), (), (1,), (7, 1.0, "text"))
    odd = Metrics(head(), ("loss",), (*rows, (8, 1.0, 3.0)))

    assert write(store, NumberedBatch(head(2**70), 1, [odd, event(2**70)])) == [2]
    assert [point.step for point in store.records.points("j")] == [8]
    assert store.records.events()[0].step == 2**63 - 1


def test_curves_are_read_from_a_step_on_or_their_newest_part(store: PlaneStore) -> None:
    rows: list[Message | None] = [loss(step, step, 0, 1) for step in range(10)]
    write(store, NumberedBatch(head(rank=1), 1, rows))

    assert [p.step for p in store.records.points("j", "loss", 1, after=6)] == [7, 8, 9]
    assert [p.step for p in store.records.points("j", limit=2)] == [8, 9]
    assert [p.step for p in store.records.latest("j")] == [9]
    assert store.records.points("other") == []


def test_a_failed_transaction_leaves_nothing_and_the_next_one_works(store: PlaneStore) -> None:
    class Poison(Event, frozen=True, tag="Event"):
        @property
        def facts(self) -> Any:  # type: ignore[override]
            raise ZeroDivisionError

    ingest = store.ingest()
    poison = NumberedBatch(head(), 2, [Poison(head(), "x", 0, 0.0)])
    good = NumberedBatch(head(), 1, [loss(1, 1.0)])

    with pytest.raises(ZeroDivisionError):
        ingest.write([good, poison])
    assert store.records.points("j") == []

    assert ingest.write([good]) == [1]
    assert len(store.records.points("j")) == 1
    ingest.close()


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6)), max_size=25))
def test_whatever_order_batches_come_in_each_record_is_there_once(
    store: PlaneStore, cuts: list[tuple[int, int]]
) -> None:
    """A batch counts once the one that it follows is stored."""
    job = f"job {next(JOBS)}"
    who = head(job=job)
    expected = 0

    ingest = store.ingest()
    for first, count in cuts:
        batch = [Event(who, "x", number, 0.0) for number in range(first, first + count)]
        if first <= expected + 1:
            expected = max(expected, first + count - 1)
        numbered = NumberedBatch(who, first, batch, follows=first - 1)
        assert ingest.write([numbered]) == [expected]
    ingest.close()

    numbers = [told.number for told in store.records.events(job)]
    assert numbers == list(range(1, expected + 1))


def test_what_a_driver_says_in_anger_is_told_in_words(store: PlaneStore) -> None:
    words = "the records database failed: .*no_such_table"

    with pytest.raises(RecordsLost, match=words), store.records.snapshot() as moment:
        moment.rows("SELECT * FROM no_such_table")
