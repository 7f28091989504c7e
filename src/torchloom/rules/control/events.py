"""Name what is said about a command: by those who want it, by ranks, and by the one who decides."""

from dataclasses import dataclass
from typing import Any

from torchloom.rules.control.command import Command, CommandEntry, Commit, Outcome

# What happened. Whatever belongs to another generation is dropped before it comes here.


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody wants a command; the same id twice is one command."""

    command: Command


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Somebody no longer wants a command."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class BoundaryReached:
    """A rank had its first step boundary in this generation: the API's, or an attached one."""

    rank: int
    is_api: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank is in this step and will not start `step + 1 + k` without an outcome."""

    id: str
    rank: int
    step: int
    k: int = 0
    offer: int = 1

    @property
    def limit(self) -> int:
        return self.step + 1 + self.k


@dataclass(frozen=True, slots=True)
class Refused:
    """A rank cannot do it, or could not when it had been decided."""

    id: str
    rank: int
    why: str
    offer: int = 1
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """The store's entry as somebody read it: the first that was written, whoever asked."""

    id: str
    outcome: Outcome
    offer: int = 1


@dataclass(frozen=True, slots=True)
class Applied:
    """A rank did it, before this step."""

    id: str
    rank: int
    step: int
    before: Any = None
    after: Any = None
    offer: int = 1


@dataclass(frozen=True, slots=True)
class RankGone:
    """A rank is no more, and with it the generation."""

    rank: int


@dataclass(frozen=True, slots=True)
class Generation:
    """These ranks train from step `start` on; what survivors knew of outcomes was told before."""

    number: int
    ranks: frozenset[int]
    start: int = 0


@dataclass(frozen=True, slots=True)
class JobEnded:
    """No rank will do anything any more."""

    why: str


@dataclass(frozen=True, slots=True)
class CommandTick:
    """Time has passed."""

    now: float


Event = (
    Asked
    | Withdrawn
    | BoundaryReached
    | Ready
    | Refused
    | Decided
    | Applied
    | RankGone
    | Generation
    | JobEnded
    | CommandTick
)


# What to do about it, in this order.


@dataclass(frozen=True, slots=True)
class StoreCommand:
    """Store the row, and its status as an event, before anything that follows is done."""

    entry: CommandEntry


@dataclass(frozen=True, slots=True)
class SendPrepare:
    """Ask these ranks for a promise; one that has given it gives the same again."""

    entry: CommandEntry
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class AskWrite:
    """Have a rank write the outcome under `entry.key` if nothing is there, and report what is."""

    entry: CommandEntry
    rank: int
    outcome: Commit


@dataclass(frozen=True, slots=True)
class Tell:
    """Say the outcome of the entry's offer to these ranks."""

    entry: CommandEntry
    ranks: frozenset[int]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CommandDone:
    """Answer whoever waits for this command: its row says how it ended, rank by rank."""

    entry: CommandEntry


Effect = StoreCommand | SendPrepare | AskWrite | Tell | CommandDone
