"""What a job came to, told from what is stored of it alone."""

import math
from dataclasses import replace
from typing import Any

from torchloom.messages.plane import VERSION, Event, Goodbye, Head, Metrics
from torchloom.weaver.runs.summary import faults_of, is_due, metrics_of, summary_of
from torchloom.weaver.store import NumberedBatch, PlaneStore
from torchloom.weaver.store.rows import EventRow, JobRow, RankEventRow

ENDED = JobRow(
    "job-1",
    state="COMPLETED",
    run_id="job-1",
    attempt=2,
    generation=1,
    started_at=100.0,
    ended_at=160.5,
    step=40,
)


def stored(store: PlaneStore, *records: Any, rank: int = 0) -> None:
    """Store what a rank told."""
    head = Head(VERSION, "job-1", 0, rank, f"life-{rank}")
    ingest = store.ingest()
    ingest.write([NumberedBatch(head, 1, list(records), 0, 0)])
    ingest.close()


def gone(seq: int, rank: int, reason: str, generation: int = 0) -> EventRow:
    facts = {"pid": 1, "generation": generation}
    return EventRow(seq, 100.0 + seq, "job-1", "rank_gone", rank, reason=reason, facts=facts)


def told(kind: str, **facts: Any) -> RankEventRow:
    return RankEventRow(1, "job-1", 2, 0, "life", 1, kind, 7, 105.0, facts)


def found(
    job: JobRow, *happened: EventRow, said: tuple[RankEventRow, ...] = ()
) -> list[tuple[str, int, str]]:
    return [(one["kind"], one["rank"], one["reason"]) for one in faults_of(job, happened, said)]


def test_a_summary_has_what_ranks_told_and_the_weaver_saw(store: PlaneStore) -> None:
    head = Head(VERSION, "job-1", 0, 0, "life-0")
    curve = Metrics(head, ("loss", "accuracy"), ((1, 10.0, 0.5, 0.1), (2, 11.0, 0.7, 0.3)))
    facts = {"steps": 41, "samples": 2560, "workers": 2}
    stored(store, curve, Event(head, "trained", 2, 12.0, facts))
    store.state.note(gone(1, 1, "exit_signal_9_rank_1"))

    summary = summary_of(store.state, store.records, ENDED)

    (fault,) = summary.pop("faults")
    assert (fault["kind"], fault["rank"], fault["reason"]) == ("exit", 1, "exit_signal_9_rank_1")
    assert summary == {
        "steps": 40,
        "samples": 2560,
        "wall_seconds": 60.5,
        "restarts": 1,
        "metrics": {
            "accuracy": {
                "goal": "max",
                "last": 0.3,
                "min": 0.1,
                "max": 0.3,
                "best": 0.3,
                "best_step": 2,
            },
            "loss": {
                "goal": "min",
                "last": 0.7,
                "min": 0.5,
                "max": 0.7,
                "best": 0.5,
                "best_step": 1,
            },
        },
    }


def test_a_job_that_ended_unseen_came_as_far_as_its_ranks_said(store: PlaneStore) -> None:
    for rank, step in ((0, 12), (1, 11)):
        head = Head(VERSION, "job-1", 0, rank, f"life-{rank}")
        stored(store, Goodbye(head, step), rank=rank)

    assert summary_of(store.state, store.records, replace(ENDED, step=None))["steps"] == 11


def test_a_summary_of_nothing_says_so(store: PlaneStore) -> None:
    job = JobRow("job-1", state="CANCELLED")

    assert summary_of(store.state, store.records, job) == {
        "steps": None,
        "samples": None,
        "wall_seconds": None,
        "restarts": 0,
        "metrics": {},
        "faults": [],
    }


def test_metrics_are_those_of_the_lowest_rank_that_has_them(store: PlaneStore) -> None:
    for rank, value in ((1, 0.5), (2, 0.1)):
        head = Head(VERSION, "job-1", 0, rank, f"life-{rank}")
        stored(store, Metrics(head, ("loss",), ((1, 10.0, value),)), rank=rank)

    assert metrics_of(store.records, "job-1") == {
        "loss": {"goal": "min", "last": 0.5, "min": 0.5, "max": 0.5, "best": 0.5, "best_step": 1}
    }


def test_the_best_is_the_first_of_the_best_and_never_what_is_no_number(store: PlaneStore) -> None:
    head = Head(VERSION, "job-1", 0, 0, "life-0")
    values = [0.5, 0.4, 0.4, 0.5, math.nan]
    rows = tuple((step, 1.0, value, value, math.nan) for step, value in enumerate(values))
    stored(store, Metrics(head, ("loss", "accuracy", "odd"), rows))

    assert metrics_of(store.records, "job-1") == {
        "accuracy": {
            "goal": "max",
            "last": "nan",
            "min": 0.4,
            "max": 0.5,
            "best": 0.5,
            "best_step": 0,
        },
        "loss": {"goal": "min", "last": "nan", "min": 0.4, "max": 0.5, "best": 0.4, "best_step": 1},
        "odd": {
            "goal": None,
            "last": "nan",
            "min": None,
            "max": None,
            "best": None,
            "best_step": None,
        },
    }


def test_of_ranks_that_fall_together_the_first_is_at_fault() -> None:
    assert found(
        ENDED,
        gone(1, 2, "exit_code_1_rank_2"),
        gone(2, 0, "exit_signal_15_rank_0"),
        gone(3, 1, "exit_signal_9_rank_0"),
        gone(4, 3, "exit_signal_9_rank_3", generation=1),
    ) == [("exit", 2, "exit_code_1_rank_2"), ("exit", 3, "exit_signal_9_rank_3")]


def test_ranks_that_end_well_or_with_another_are_not_at_fault() -> None:
    assert (
        found(
            ENDED,
            gone(1, 0, "ended"),
            gone(2, 1, "exit_code_0_rank_1"),
            gone(3, 2, "exit_signal_9_rank_1"),
            gone(4, 3, "ranks_ended"),
        )
        == []
    )


def test_a_cancelled_jobs_ranks_end_as_they_are_told_but_not_those_before() -> None:
    job = JobRow("job-1", state="CANCELLED", generation=1)

    assert found(
        job, gone(1, 0, "exit_code_3_rank_0"), gone(2, 0, "exit_signal_15_rank_0", generation=1)
    ) == [("exit", 0, "exit_code_3_rank_0")]


def test_programs_without_a_threadlet_are_told_by_their_exit() -> None:
    facts = {"role": "a", "attempt": 0, "code": 3}
    ended = EventRow(1, 101.0, "job-1", "exit", 0, facts=facts)
    well = EventRow(2, 102.0, "job-1", "exit", 1, facts={**facts, "code": 0, "attempt": 1})

    assert found(ENDED, ended, well) == [("exit", 0, "exit_code_3")]


def test_hangs_lost_nodes_and_what_ranks_complain_of_are_faults_by_time() -> None:
    hang = EventRow(1, 110.0, "job-1", "hang", 3, reason="hang_rank_3")
    lost = EventRow(2, 120.0, "job-1", "node_lost", -1, reason="silent")
    up = EventRow(3, 121.0, "job-1", "rank_up", 1)

    assert found(ENDED, hang, lost, up, said=(told("nan"), told("init", project="x"))) == [
        ("nan", 2, "nan"),
        ("hang", 3, "hang_rank_3"),
        ("node_lost", -1, "silent"),
    ]


def test_each_end_has_a_summary_of_its_own() -> None:
    running, first = JobRow("a", state="RUNNING"), JobRow("a", state="FAILED", ended_at=5.0)
    summed = JobRow("a", state="FAILED", ended_at=5.0, facts={"summary": {}, "summarized": 5.0})
    again = JobRow("a", state="COMPLETED", ended_at=9.0, facts=summed.facts)

    assert [is_due(job) for job in (running, first, summed, again)] == [False, True, False, True]
