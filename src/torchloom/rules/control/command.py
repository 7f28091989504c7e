"""Commands of live control, the state of each, and how it ended."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from torchloom.errors import UserError


class BadKnobValue(UserError):
    """A knob does not accept this value."""

    code = "bad_value"


class NotAKnob(UserError):
    """A value of the program's config that no step has read: to change it would do nothing."""

    code = "not_a_knob"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is a value of the config that no step has read, so a change would have no"
            f" effect; read run.config[{name!r}] inside the step, or register it with"
            f" run.knob({name!r}, ...) or run.on({name!r}, ...)"
        )


class CommandKind(StrEnum):
    """What a command does to a running job."""

    KNOB = "knob"  # its payload maps names of knobs to values
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    STOP_AT = "stop_at"
    CHECKPOINT = "checkpoint"
    RESIZE = "resize"
    PROFILE = "profile"
    DIGEST = "digest"  # its payload has the name of a step digest log; without one it ends

    @property
    def is_aligned(self) -> bool:
        """Return whether it must act before one and the same step on all ranks.

        A paused rank reaches no further step, so a resume cannot wait for one.
        """
        return self not in (CommandKind.RESUME, CommandKind.PROFILE)

    @property
    def is_replayed(self) -> bool:
        """Return whether a recovery that goes back before its step does it again."""
        return self is CommandKind.KNOB


@dataclass(frozen=True, slots=True)
class Command:
    """What is requested; `at_step` is the step it shall take effect before, where one is given."""

    id: str
    kind: CommandKind
    payload: Mapping[str, Any] = field(default_factory=dict)
    author: str = ""
    reason: str = ""
    at_step: int | None = None


@dataclass(frozen=True, slots=True)
class CommitAt:
    """The command takes effect before this step; without a step, at once."""

    step: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The command does not take effect."""

    why: str = ""


Outcome = CommitAt | Abort


class Status(StrEnum):
    """The status of a command."""

    ACCEPTED = "accepted"
    OFFERED_AGAIN = "offered_again"  # an offer failed; the next one is queued
    PREPARING = "preparing"  # it is offered to ranks
    COMMITTED = "committed"
    APPLIED = "applied"
    REFUSED = "refused"
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        return self in (Status.APPLIED, Status.REFUSED, Status.ABORTED)


@dataclass(frozen=True, slots=True)
class Ack:
    """A rank's report that it did it: before which step, and the values before and after."""

    step: int
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command's row: all that is stored of it, enough to continue after a restart.

    `number` is its place among the job's commands: of two with one step, the lower acts first.
    An `offer` is one try at a decision; its outcome has an entry of its own in the store.
    """

    command: Command
    number: int
    status: Status = Status.ACCEPTED
    offer: int = 1
    step: int | None = None
    why: str = ""
    acks: Mapping[int, Ack] = field(default_factory=dict)
    generation: int = 0

    @property
    def id(self) -> str:
        return self.command.id

    @property
    def key(self) -> str:
        """Return the key of this offer's outcome in the store of a generation."""
        return f"command/{self.offer_id}"

    @property
    def offer_id(self) -> str:
        """Return the id by which messages to and from ranks name this offer."""
        return f"{self.id}/{self.offer}"


def offer_of(offer_id: str) -> tuple[str, int] | None:
    """Return the command and the offer that a rank names; None for an id that is not ours."""
    command, slash, offer = offer_id.rpartition("/")
    if not slash or not offer.isdecimal() or len(offer) > 9:
        return None
    return command, int(offer)


def schedule(audit: Iterable[CommandEntry]) -> tuple[CommandEntry, ...]:
    """Return the knob changes of a job in the order in which every run of it comes upon them.

    A generation that begins anew goes through the changes of those before it at their steps. When
    a knob is changed there, older changes of it that are still ahead no longer count.
    """
    happened = [
        entry
        for entry in audit
        if entry.status in (Status.COMMITTED, Status.APPLIED) and entry.command.kind.is_replayed
    ]
    kept = (_less_what_is_over(entry, happened) for entry in happened)
    return tuple(
        sorted((e for e in kept if e.command.payload), key=lambda e: (e.step or 0, e.number))
    )


def _less_what_is_over(entry: CommandEntry, others: Iterable[CommandEntry]) -> CommandEntry:
    """Return a change without the knobs that a later generation has set before its step."""
    if entry.status != Status.APPLIED:
        return entry  # a plan: no rank has reached its step yet
    step = entry.step or 0
    later = (e for e in others if e.generation > entry.generation and (e.step or 0) <= step)
    over = {name for other in later for name in other.command.payload}
    if not over:
        return entry
    payload = {name: value for name, value in entry.command.payload.items() if name not in over}
    return replace(entry, command=replace(entry.command, payload=payload))
