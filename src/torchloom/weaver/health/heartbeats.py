"""The heartbeats of agents: the progress of their ranks, and which agents are silent."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import msgspec

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost
from torchloom.bus.codec import Garbled, decode
from torchloom.messages.plane import VERSION, Heartbeat, Progress
from torchloom.rules import liveness
from torchloom.rules.verdict import STANDS
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.store.rows import RankProcessRow

CHECK = 0.1  # seconds between two checks for silent agents
_TOGETHER = 50  # agents that are stored as lost in one transaction
ECHO = subjects.heartbeat("weaver")  # the weaver's own heartbeats, in order with those of agents
_SHARE = 0.25  # of the time that this takes, left to other messages
_AGAIN = 5.0  # seconds after which an echo is held to be lost


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
    heartbeat: bytes = b""
    stood: bool = False  # one of its ranks made no progress

    @property
    def progress(self) -> tuple[Progress, ...]:
        """The progress of its ranks; empty where the heartbeat cannot be decoded."""
        try:
            return decode(self.heartbeat, Heartbeat).progress
        except Garbled:
            return ()

    @property
    def heartbeat_at(self) -> float | None:
        """When its last heartbeat was sent; none where there is none, or it cannot be decoded."""
        try:
            return decode(self.heartbeat, Heartbeat).sent
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


class AgentLiveness:
    """Feed `rules/liveness` with who was seen, and store which agents it declares lost."""

    def __init__(
        self,
        bus: Bus,
        roster: Roster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._roster = roster
        self._clock = clock
        self._nodes = liveness.State()
        self._seen = {agent.id for agent in roster.agents() if agent.state == "up"}
        self._echo = False
        self._awaited: float | None = None  # since when our own echo is awaited
        self._losing: dict[str, str] = {}  # reason by agent, not stored yet
        self._lost_some = asyncio.Event()
        if self._seen:
            self.interrupted()  # agents of the last weaver have time to register

    def interrupted(self) -> None:
        """Restart all timeouts: the weaver's own connection broke or came back."""
        self._nodes, _ = liveness.step(self._nodes, liveness.BusInterrupted())
        self._awaited = None

    def seen(self, agent: str) -> None:
        """Note that a message of an agent has arrived."""
        self._seen.add(agent)

    def left(self, agent: str) -> None:
        """Note that an agent has left in order."""
        self._seen.discard(agent)
        self._losing.pop(agent, None)
        self._nodes, _ = liveness.step(self._nodes, liveness.AgentLeft(agent))

    def echo(self) -> None:
        """Note that the weaver's echo arrived, and with it all that was sent before."""
        self._echo, self._awaited = True, None

    async def check(self) -> None:
        """Check once which agents are silent; the weaver repeats it.

        While the weaver's own echo is on its way, so may be the heartbeats of agents. A busy
        weaver reads them late and must not take that for silence.
        """
        now = self._clock()
        if self._awaited is not None:
            if now - self._awaited > _AGAIN:
                await self._call(now)
            return
        tick = liveness.LivenessTick(now, frozenset(self._seen), self._echo)
        self._seen.clear()
        self._echo = False
        self._nodes, effects = liveness.step(self._nodes, tick)
        for effect in effects:
            if isinstance(effect, liveness.NodeSilent):
                self._losing[effect.node] = f"silent for {effect.silent_for:.1f} s"
                self._lost_some.set()
            else:
                self._losing.pop(effect.node, None)
        await self._call(now)

    async def run(self) -> None:
        """Store lost agents until cancelled, a rack at a time, with pauses for other messages."""
        while True:
            await self._lost_some.wait()
            self._lost_some.clear()
            while self._losing:
                began, some = self._clock(), list(islice(self._losing, _TOGETHER))
                self._roster.agents_lost({agent: self._losing.pop(agent) for agent in some})
                await asyncio.sleep(_SHARE * (self._clock() - began))

    async def _call(self, now: float) -> None:
        """Publish an echo; there is none without a bus."""
        with contextlib.suppress(BusLost):
            self._awaited = now  # it may arrive before `publish` returns
            await self._bus.publish(ECHO, b"")
            return
        self._awaited = None
