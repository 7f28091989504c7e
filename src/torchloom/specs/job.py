"""What the weaver says of a job; what a scheduler says of an app is `AppState`."""

from enum import StrEnum


class JobState(StrEnum):
    """The life of a job. It is RUNNING from the moment its ranks are asked for."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Tell whether this attempt has ended; going on is a new attempt of the same job."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
