"""Messages about who trains in a job, and about live recovery; `rules/membership` decides on them.

A sender repeats a message until it is answered. None of them is a record, and any may arrive twice.
"""

from typing import TypeAlias

import msgspec

from torchloom.messages.base import Message

# From a rank.


class Training(Message, frozen=True, tag="Training"):
    """A rank begins to train in its generation, at this step.

    `why` says why the rank cannot be recovered live. It is empty where it can.
    """

    step: int
    why: str = ""


class Broke(Message, frozen=True, tag="Broke"):
    """A rank has an exception in a step, or in a section, and asks what caused it."""

    step: int
    is_collective: bool
    why: str = ""


class Arrived(Message, frozen=True, tag="Arrived"):
    """A member has left all older groups, or has reached its steps for the first time.

    `applied` is the number of steps it has applied, or None without a whole state. `pages` are the
    steps of its own pages on this node. `why` says why it cannot be recovered live.
    """

    applied: int | None
    pages: tuple[int, ...] = ()
    why: str = ""


class Restored(Message, frozen=True, tag="Restored"):
    """A member has all that the plan gives it, checked by hash, and its page is written."""

    seconds: float = 0.0
    taken: int = 0  # bytes


class NotRestored(Message, frozen=True, tag="NotRestored"):
    """A member could not take what the plan gives it."""

    why: str


class Finished(Message, frozen=True, tag="Finished"):
    """A member has no step left and waits for the others."""

    step: int


# To a rank.


class JoinGeneration(Message, frozen=True, tag="Regroup"):
    """Leave all older generations, and report your position for the one in the head."""

    epoch: int


class Given(msgspec.Struct, frozen=True, array_like=True):
    """A member gets something: of a step, from a rank, from that rank's keeper, or from storage."""

    target: int
    what: str  # of `rules.membership.election.What`
    step: int
    source: int | None = None


class Transfer(Message, frozen=True, tag="Transfer"):
    """Meet the others in the generation's store, and take what is given."""

    epoch: int
    store: str  # file:///..., or tcp://HOST:PORT
    start: int
    given: tuple[Given, ...] = ()
    nodes: tuple[str, ...] = ()  # by rank


class Go(Message, frozen=True, tag="Go"):
    """Train, beginning with this step."""

    epoch: int
    start: int


class LetStand(Message, frozen=True, tag="LetStand"):
    """The generation continues in spite of an exception."""

    epoch: int


class Release(Message, frozen=True, tag="Release"):
    """All members have finished: continue with the program after its steps."""

    epoch: int


# Between the weaver and the process that launched a job. The heads of its messages have no rank.


class ProcessReport(msgspec.Struct, frozen=True, array_like=True):
    """One process of a rank: where it runs, and how it ended if it has.

    `life` numbers the processes of a rank in an attempt, from 1.
    """

    rank: int
    life: int
    node: str
    code: int | None = None  # below zero a signal
    step: int = -1  # the step it was in when it ended; -1 where that is unknown
    why: str = ""  # it could not be started


class ProcessReports(Message, frozen=True, tag="Lives"):
    """All processes that an attempt has had; sent at each change, and once a second.

    `lost` are nodes that are lost with all processes on them. `room` is how many ranks each node
    can run.
    """

    attempt: int
    lives: tuple[ProcessReport, ...]
    room: dict[str, int] = {}
    lost: tuple[str, ...] = ()
    store: str = ""  # of the newest generation for which one was ordered, once it exists
    stored: int = -1  # that generation


class Watch(Message, frozen=True, tag="Watch"):
    """From now on the weaver handles the losses of an attempt, or no longer does."""

    epoch: int
    attempt: int
    is_live: bool


class Fork(Message, frozen=True, tag="Fork"):
    """Start a process of a rank on a stand-in group for this generation, unless it was started."""

    epoch: int
    attempt: int
    rank: int
    life: int
    node: str


class MakeStore(Message, frozen=True, tag="MakeStore"):
    """Create the store of the head's generation, unless it exists."""

    epoch: int
    attempt: int
    node: str


class EndProcess(Message, frozen=True, tag="EndLife"):
    """End one process of a rank at once; one that was not started yet never will be."""

    epoch: int
    attempt: int
    rank: int
    life: int
    reason: str


class Restart(Message, frozen=True, tag="Restart"):
    """Live recovery has ended, for a cause: restart all ranks by the launch's own rule."""

    epoch: int
    attempt: int
    reason: str
    cause: str


FromMember: TypeAlias = Training | Broke | Arrived | Restored | NotRestored | Finished
ToMember: TypeAlias = JoinGeneration | Transfer | Go | LetStand | Release
MembershipReport: TypeAlias = FromMember | ProcessReports
ToLaunch: TypeAlias = Watch | Fork | MakeStore | EndProcess | Restart
