"""States of apps, replicas and jobs."""

from enum import Enum, StrEnum

from torchloom.specs.dataclass import dataclass


class AppState(int, Enum):
    """The state of an app; a preempted one returns from RUNNING to PENDING."""

    UNSUBMITTED = 0
    SUBMITTED = 1
    PENDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    UNKNOWN = 7

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} ({self.value})"


ReplicaState = AppState
Place = tuple[str, int, int]  # of a rank: role, replica, local rank


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """Which copy of which role."""

    role: str
    index: int

    def __lt__(self, other: "ReplicaKey") -> bool:
        return (self.role, self.index) < (other.role, other.index)


TERMINAL = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})
STARTED = TERMINAL | {AppState.RUNNING}


def is_terminal(state: AppState) -> bool:
    """Tell whether a state is final."""
    return state in TERMINAL


def is_started(state: AppState) -> bool:
    """Tell whether processes run or have run."""
    return state in STARTED


class JobState(StrEnum):
    """The state of a job. It is RUNNING from the moment its ranks are requested."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Tell whether this attempt has ended; to resume is a new attempt of the same job."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


UNKNOWN = AppState.UNKNOWN.name  # no state of a job: of an engine that no longer knows it
_OF_APP = {
    AppState.UNSUBMITTED: JobState.QUEUED,
    AppState.SUBMITTED: JobState.QUEUED,
    AppState.PENDING: JobState.QUEUED,
    AppState.RUNNING: JobState.RUNNING,
    AppState.SUCCEEDED: JobState.COMPLETED,
    AppState.FAILED: JobState.FAILED,
    AppState.CANCELLED: JobState.CANCELLED,
}
_OF_JOB = {
    JobState.QUEUED: AppState.PENDING,
    JobState.RUNNING: AppState.RUNNING,
    JobState.RECOVERING: AppState.RUNNING,
    JobState.PAUSED: AppState.RUNNING,
    JobState.COMPLETED: AppState.SUCCEEDED,
    JobState.FAILED: AppState.FAILED,
    JobState.CANCELLED: AppState.CANCELLED,
}


def job_state_of(app: AppState) -> str:
    """Return a scheduler's state of an app as a state of a job."""
    return str(_OF_APP.get(app, UNKNOWN))


def app_state_of(job: str) -> str:
    """Return TorchX's state of an app for a state of a job."""
    return _OF_JOB[JobState(job)].name
