"""The states of a job, the transitions between them, and their reasons."""

from collections.abc import Mapping
from dataclasses import dataclass

from torchloom.specs.states import JobState

_FROM_ANY = (JobState.QUEUED, JobState.FAILED, JobState.CANCELLED)

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.FAILED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {JobState.COMPLETED, JobState.RECOVERING, JobState.PAUSED, *_FROM_ANY}
    ),
    JobState.RECOVERING: frozenset({JobState.RUNNING, JobState.PAUSED, *_FROM_ANY}),
    JobState.PAUSED: frozenset({JobState.RUNNING, JobState.RECOVERING, *_FROM_ANY}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A transition that does not exist: a bug, not a user's mistake."""

    def __init__(self, job: str, state: JobState, to: JobState, reason: str) -> None:
        self.job = job
        self.state = state
        self.to = to
        super().__init__(f"job {job} cannot go from {state} to {to} ({reason or 'no reason'})")


class MissingReason(RuntimeError):
    """A transition without a reason."""

    def __init__(self, job: str, to: JobState) -> None:
        super().__init__(f"job {job} goes to {to} without a reason")


@dataclass(frozen=True, slots=True)
class JobLifecycle:
    """A job's state, the reason of it, and how many attempts and changes there were."""

    id: str
    state: JobState = JobState.QUEUED
    reason: str = ""
    attempt: int = 1
    changes: int = 0


@dataclass(frozen=True, slots=True)
class ChangeState:
    """The job is to be in this state, because of this."""

    to: JobState
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """A job that has ended, or was released, is to continue as a new attempt."""

    reason: str


@dataclass(frozen=True, slots=True)
class Transition:
    """Store and publish this: the one event of one change."""

    job: str
    number: int
    attempt: int
    before: JobState
    after: JobState
    reason: str


Event = ChangeState | Resume


def step(job: JobLifecycle, event: Event) -> tuple[JobLifecycle, tuple[Transition, ...]]:
    """Handle one event; return the job after it and its transition, if it changes."""
    to = JobState.QUEUED if isinstance(event, Resume) else event.to
    if to is job.state and isinstance(event, ChangeState):
        return job, ()
    if not event.reason:
        raise MissingReason(job.id, to)
    if not _is_legal(job.state, event):
        raise IllegalTransition(job.id, job.state, to, event.reason)
    attempt = job.attempt + isinstance(event, Resume)
    change = Transition(job.id, job.changes + 1, attempt, job.state, to, event.reason)
    return JobLifecycle(job.id, to, event.reason, attempt, change.number), (change,)


def _is_legal(state: JobState, event: Event) -> bool:
    if isinstance(event, Resume):
        return state.is_final or state is JobState.PAUSED
    return event.to in TRANSITIONS[state]


# Reasons are matched by machines and shown to people; each is spelled here only.


def exit_reason(rank: int, code: int) -> str:
    """Return `exit_code_1_rank_0`, or `exit_signal_9_rank_1` for a rank that a signal ended."""
    how = f"signal_{-code}" if code < 0 else f"code_{code}"
    return f"exit_{how}_rank_{rank}"


def heartbeat_reason(rank: int) -> str:
    return f"heartbeat_timeout_worker_{rank}"


def hang_reason(rank: int) -> str:
    return f"hang_rank_{rank}"


def device_reason(uuid: str) -> str:
    return f"device_failed_{uuid}"


def node_reason(node: str) -> str:
    return f"node_lost_{node}"


def collective_reason(rank: int) -> str:
    return f"collective_error_rank_{rank}"


def loss_reason(rank: int) -> str:
    return f"loss_not_finite_rank_{rank}"


CANCELLED_BY_USER = "cancelled_by_user"
RELEASED = "released"  # a paused job that has saved its state and given its places back
