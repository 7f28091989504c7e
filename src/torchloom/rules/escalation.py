"""Say when a job that cannot recover live is started again, and when it has failed."""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How a job comes back from a loss."""

    LIVE = "live"  # survivors stay up
    RESTART = "restart"  # every process is a new one


class Cause(StrEnum):
    """Why it cannot come back as it was trying to."""

    NO_SURVIVOR = "no_survivor"
    LIVE_WAIT = "live_wait"  # members did not meet in time
    TRIES = "tries"  # too many generations came to nothing
    REPEATS = "repeats"  # one rank dies again and again in one step
    PROLOGUE = "prologue_collectives"  # the program's set-up talks to ranks that are long past it
    PAGES = "pages_lost"  # what one rank alone knew died with its node
    NO_STATE = "no_state"  # nobody has a whole state
    NO_COPY = "no_copy"  # of sharded state no copy is complete, or a checkpoint is newer
    LEFT = "left"  # the program of a member has ended
    DIED = "died"  # a process of a restart did
    RESTART_WAIT = "restart_wait"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often each is tried, in seconds and times."""

    live_wait: float = 60.0  # from the first loss until a generation trains
    restart_wait: float = 120.0
    tries: int = 5  # generations of one recovery that were met in, or newcomers that died
    repeats: int = 4  # recoveries in a row in which one rank was lost in one step
    reforms: int = 2  # generations in a row that broke in one step with nobody gone
    restarts: int = 3  # in a row that got no further than those before
    grace: float = 1.0  # between the word that a collective broke and its consequences
    resend: float = 0.5  # what has no answer is said again
    longest_look: float = 1.0  # what counts of the time between two looks, at most
    is_exact: bool = False  # rather restart than go on with other bits


def overdue(mode: Mode, waited: float, limits: Limits) -> Cause | None:
    """Return the limit that a recovery has passed."""
    if mode is Mode.LIVE:
        return Cause.LIVE_WAIT if waited >= limits.live_wait else None
    return Cause.RESTART_WAIT if waited >= limits.restart_wait else None


def worn(tries: int, limits: Limits) -> Cause | None:
    """Return the limit that the number of failed generations has passed."""
    return Cause.TRIES if tries >= limits.tries else None


def may_restart(stuck: int, limits: Limits) -> bool:
    """Tell whether another restart may get anywhere, after so many that did not."""
    return stuck < limits.restarts
