"""What a scheduler says of an app or of one replica."""

from enum import Enum


class AppState(int, Enum):
    """The life of an app; a preempted one goes from RUNNING back to PENDING."""

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

TERMINAL = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})
STARTED = TERMINAL | {AppState.RUNNING}


def is_terminal(state: AppState) -> bool:
    """Tell whether nothing more will happen."""
    return state in TERMINAL


def is_started(state: AppState) -> bool:
    """Tell whether processes run or have run."""
    return state in STARTED
