"""What is said when members of a job change while it runs; `rules/membership` decides.

What has no answer is said again: none of it is a record, and any may come twice.
"""

from typing import TypeAlias

import msgspec

from torchloom.messages.base import Message

# By a rank.


class Training(Message, frozen=True, tag="Training"):
    """A rank begins to train in its generation, at this step; `why` tells why it cannot be
    recovered live, and is empty where it can."""

    step: int
    why: str = ""


class Broke(Message, frozen=True, tag="Broke"):
    """A rank has an exception in a step, or in a section, and asks whose it is."""

    step: int
    is_collective: bool
    why: str = ""


class Arrived(Message, frozen=True, tag="Arrived"):
    """A member has left all older groups, or come to its steps: so many steps it has applied.

    Without a whole state that is None. `pages` are the steps of its own pages on this node; `why`
    tells why it cannot go on live.
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


class Regroup(Message, frozen=True, tag="Regroup"):
    """Older generations are over: leave, and say where you stand for that of the head."""

    epoch: int


class Given(msgspec.Struct, frozen=True, array_like=True):
    """A member gets something: of a step, from a rank, or from that rank's keeper."""

    target: int
    what: str  # of `rules.election.What`
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
    """Train, from this step on."""

    epoch: int
    start: int


class LetStand(Message, frozen=True, tag="LetStand"):
    """The generation stands in spite of an exception."""

    epoch: int


class Release(Message, frozen=True, tag="Release"):
    """All have finished: go on behind the steps."""

    epoch: int


# Between the weaver and the process that launched a job. Its messages' heads have no rank.


class Life(msgspec.Struct, frozen=True, array_like=True):
    """One process of a rank: where it runs, and how it ended if it has."""

    rank: int
    life: int
    node: str
    code: int | None = None  # below zero a signal
    step: int = -1  # the step it was in when it ended; -1 where it told none
    why: str = ""  # it could not be started


class Lives(Message, frozen=True, tag="Lives"):
    """All processes that an attempt has had; said at each change, and once a second.

    `lost` are nodes that are gone with all they had; `room` is how many ranks each node can have.
    """

    attempt: int
    lives: tuple[Life, ...]
    room: dict[str, int] = {}
    lost: tuple[str, ...] = ()
    store: str = ""  # of the newest generation that one was asked for, once it is there
    stored: int = -1  # that generation


class Watch(Message, frozen=True, tag="Watch"):
    """From now on an attempt's losses are the weaver's to deal with, or no longer are."""

    epoch: int
    attempt: int
    is_live: bool


class Fork(Message, frozen=True, tag="Fork"):
    """Start a process of a rank, unless it was: on a stand-in group, for this generation."""

    epoch: int
    attempt: int
    rank: int
    life: int
    node: str


class MakeStore(Message, frozen=True, tag="MakeStore"):
    """Have the store of the head's generation made, unless it was."""

    epoch: int
    attempt: int
    node: str


class EndLife(Message, frozen=True, tag="EndLife"):
    """End one process of a rank at once; one that was never started never will be."""

    epoch: int
    attempt: int
    rank: int
    life: int
    reason: str


class Restart(Message, frozen=True, tag="Restart"):
    """Live cannot go on, for a cause: start all ranks again, as the launch's own rule says."""

    epoch: int
    attempt: int
    reason: str
    cause: str


Talk: TypeAlias = Training | Broke | Arrived | Restored | NotRestored | Finished | Lives
ToLaunch: TypeAlias = Watch | Fork | MakeStore | EndLife | Restart
Regrouping: TypeAlias = Regroup | Transfer | Go | LetStand | Release
