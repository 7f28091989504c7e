"""The last heartbeat of every agent, and by it the progress of every rank."""

from dataclasses import dataclass

import msgspec

from torchloom.bus.codec import Garbled, decode
from torchloom.messages.plane import VERSION, Heartbeat, Progress
from torchloom.rules.verdict import STANDS
from torchloom.weaver.store.rows import RankProcessRow


class ProgressHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of a rank, decoded only as far as `moved`."""

    head: msgspec.Raw
    step: int
    phase: int
    moved: float


class VersionHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message head, decoded only as far as the version."""

    version: int


class HeartbeatHeader(msgspec.Struct, frozen=True, array_like=True, tag="Beat", gc=False):
    """A heartbeat, decoded only as far as needed to see whether ranks make progress."""

    head: VersionHeader
    agent: str
    sent: float
    progress: tuple[ProgressHeader, ...] = ()


_DECODER = msgspec.msgpack.Decoder(HeartbeatHeader)


def read_header(data: bytes) -> tuple[str, bool] | None:
    """Return the agent of a heartbeat and whether a rank makes no progress; none if malformed."""
    try:
        seen: HeartbeatHeader = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if seen.head.version != VERSION:
        return None
    for each in seen.progress:
        if each.moved > STANDS:
            return seen.agent, True
    return seen.agent, False


@dataclass(slots=True)
class Presence:
    """What is kept in memory of an agent: its last heartbeat, undecoded."""

    agent: str
    hello: int = 0  # hash of its registration, without the epoch
    beat: bytes = b""
    stood: bool = False  # one of its ranks made no progress

    @property
    def progress(self) -> tuple[Progress, ...]:
        """The progress of its ranks; empty where the heartbeat cannot be decoded."""
        try:
            return decode(self.beat, Heartbeat).progress
        except Garbled:
            return ()

    @property
    def beat_at(self) -> float | None:
        """When its last heartbeat was sent; none where there is none, or it cannot be decoded."""
        try:
            return decode(self.beat, Heartbeat).sent
        except Garbled:
            return None


class Heartbeats:
    """The agents that have registered since this weaver started, by id."""

    def __init__(self) -> None:
        self.present: dict[str, Presence] = {}

    def progress(self, rank: RankProcessRow) -> Progress | None:
        """Return the progress of a rank at its agent's last heartbeat."""
        there = self.present.get(rank.agent)
        found = there.progress if there else ()
        return next((each for each in found if each.head.incarnation == rank.incarnation), None)

    def step(self, rank: RankProcessRow) -> int | None:
        """Return the step of a rank at its agent's last heartbeat."""
        found = self.progress(rank)
        return found.step if found else None
