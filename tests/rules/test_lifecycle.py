import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.rules.lifecycle import (
    CANCELLED_BY_USER,
    ChangeState,
    IllegalTransition,
    JobLifecycle,
    MissingReason,
    Resume,
    Transition,
    exit_reason,
    step,
)
from torchloom.specs.states import JobState

EDGES = {
    "QUEUED": "RUNNING FAILED CANCELLED",
    "RUNNING": "COMPLETED FAILED CANCELLED RECOVERING PAUSED QUEUED",
    "RECOVERING": "RUNNING PAUSED QUEUED FAILED CANCELLED",
    "PAUSED": "RUNNING RECOVERING QUEUED FAILED CANCELLED",
    "COMPLETED": "",
    "FAILED": "",
    "CANCELLED": "",
}


@pytest.mark.parametrize("before", JobState)
@pytest.mark.parametrize("after", JobState)
def test_a_job_moves_along_the_listed_edges_and_no_other(before: JobState, after: JobState) -> None:
    job = JobLifecycle("j", before, "so far", changes=7)

    if after is before:
        assert step(job, ChangeState(after, "again")) == (job, ())
    elif after in EDGES[before].split():
        moved = JobLifecycle("j", after, "why", changes=8)
        assert step(job, ChangeState(after, "why")) == (
            moved,
            (Transition("j", 8, 1, before, after, "why"),),
        )
    else:
        with pytest.raises(IllegalTransition, match=f"from {before} to {after}"):
            step(job, ChangeState(after, "why"))


@pytest.mark.parametrize("state", JobState)
def test_only_what_has_ended_or_is_paused_is_resumed_as_a_new_attempt(state: JobState) -> None:
    job = JobLifecycle("j", state, "so far", attempt=2)

    if EDGES[state] and state is not JobState.PAUSED:
        with pytest.raises(IllegalTransition):
            step(job, Resume("resumed_by_user"))
    else:
        after, _ = step(job, Resume("resumed_by_user"))
        assert after == JobLifecycle("j", JobState.QUEUED, "resumed_by_user", attempt=3, changes=1)


def test_no_job_moves_without_a_reason() -> None:
    with pytest.raises(MissingReason, match="job j goes to RUNNING without a reason"):
        step(JobLifecycle("j"), ChangeState(JobState.RUNNING, ""))


def test_an_exit_is_named_by_its_signal_or_code() -> None:
    assert exit_reason(1, -9) == "exit_signal_9_rank_1"
    assert exit_reason(0, 3) == "exit_code_3_rank_0"


@given(st.lists(st.sampled_from([*JobState, None]), max_size=30))
@settings(max_examples=200, derandomize=True, database=None, deadline=None)
def test_each_change_is_one_numbered_event_that_follows_the_last(
    wishes: list[JobState | None],
) -> None:
    job, told = JobLifecycle("j"), []
    for wish in wishes:
        event = ChangeState(wish, CANCELLED_BY_USER) if wish else Resume("resumed_by_user")
        try:
            job, effects = step(job, event)
        except IllegalTransition:
            continue
        told += effects

    assert [event.before for event in told] == [JobState.QUEUED, *(e.after for e in told)][:-1]
    assert job.state is (told[-1].after if told else JobState.QUEUED)
    assert [event.number for event in told] == list(range(1, len(told) + 1))
