"""What the rules of live control decide on, and what they order.

Ranks report with the messages of `messages.plane`, as they travel; `CommandReport` adds which rank
sent one.
"""

from dataclasses import dataclass

from torchloom.messages.plane import Applied, Decided, RankRefusal, Ready
from torchloom.rules.control.command import Command, CommandEntry, CommitAt, Outcome

# What happened. Reports of another generation are dropped before they come here.


@dataclass(frozen=True, slots=True)
class Asked:
    """A command is requested; the same id twice is one command."""

    command: Command


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A request for a command is withdrawn."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class BoundaryReached:
    """A rank had its first step boundary in this generation: the API's, or an attached one."""

    rank: int
    is_api: bool


@dataclass(frozen=True, slots=True)
class CommandReport:
    """A rank has sent a message about a command."""

    rank: int
    message: Ready | RankRefusal | Decided | Applied


@dataclass(frozen=True, slots=True)
class RankGone:
    """A rank has ended, and with it the generation."""

    rank: int


@dataclass(frozen=True, slots=True)
class Generation:
    """These ranks train from step `start` on; survivors have reported all outcomes they know."""

    number: int
    ranks: frozenset[int]
    start: int = 0


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job has ended: no rank runs any more."""

    why: str


@dataclass(frozen=True, slots=True)
class CommandTick:
    """Time has passed."""

    now: float


Event = (
    Asked
    | Withdrawn
    | BoundaryReached
    | CommandReport
    | RankGone
    | Generation
    | JobEnded
    | CommandTick
)


# What to do, in this order.


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
    """Have a rank write the outcome under `entry.key` unless one is there, and report which won."""

    entry: CommandEntry
    rank: int
    outcome: CommitAt


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """Send the outcome of the entry's offer to these ranks."""

    entry: CommandEntry
    ranks: frozenset[int]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CommandDone:
    """Answer the requests for this command: its row says how it ended, rank by rank."""

    entry: CommandEntry


Effect = StoreCommand | SendPrepare | AskWrite | SendOutcome | CommandDone
