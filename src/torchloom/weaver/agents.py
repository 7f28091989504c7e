"""Agents come, say how far their ranks are, and pass on what ranks answer to commands."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import msgspec

from torchloom.bus import messages, subjects
from torchloom.bus.codec import Garbled, Reader, decode
from torchloom.bus.messages import (
    NO_RANK,
    Beat,
    Greeting,
    Hello,
    Progress,
    Register,
    Welcome,
)
from torchloom.weaver.commands import Commands
from torchloom.weaver.devices import Devices
from torchloom.weaver.ledger import Ledger
from torchloom.weaver.reports import Reports
from torchloom.weaver.roster import Roster
from torchloom.weaver.sending import Sender, head_of, own_head
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Rank
from torchloom.weaver.watching import ECHO, STANDS, Watching

NUDGE = 2.0  # seconds between two reminders to an agent that has not said hello to this weaver
_TOGETHER = 200  # arrivals of one transaction
_log = logging.getLogger(__name__)


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rank's progress, of which only one thing is read."""

    head: msgspec.Raw
    step: int
    phase: int
    moved: float


class Glance(messages.Message, frozen=True, tag="Beat", gc=False):
    """A beat, read as far as most are: ten thousand come in a second, and all is well."""

    agent: str
    sent: float
    progress: tuple[Moved, ...] = ()

    @property
    def stands(self) -> bool:
        return any(each.moved > STANDS for each in self.progress)


@dataclass(slots=True)
class Presence:
    """What is only in memory of an agent: that it is there, and its last beat, as it came."""

    seen: float
    beat: bytes = b""

    @property
    def progress(self) -> tuple[Progress, ...]:
        """How far its ranks were; nothing where that cannot be read."""
        try:
            return decode(self.beat, Beat).progress
        except Garbled:
            return ()


class Agents:
    """Take in hellos, beats and acts; only what changed is stored."""

    def __init__(
        self,
        state: StateStore,
        roster: Roster,
        devices: Devices,
        commands: Commands,
        reports: Reports,
        watching: Watching,
        ledger: Ledger,
        sender: Sender,
        dropped: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._roster = roster
        self._devices = devices
        self._commands = commands
        self._reports = reports
        self._watching = watching
        self._ledger = ledger
        self._sender = sender
        self._dropped = dropped
        self._clock = clock
        self._hellos: Reader[Hello] = Reader(Hello, dropped)
        self._beats: Reader[Beat] = Reader(Beat, dropped)
        self._glances: Reader[Glance] = Reader(Glance, dropped)
        self._acts: Reader[messages.Message] = Reader(messages.FromRank, dropped)
        self._nudged: dict[str, float] = {}
        self._waiting: dict[tuple[str, str], tuple[Hello | Register, str]] = {}
        self._working: asyncio.Task[None] | None = None
        self.on_task: Callable[[asyncio.Task[None]], None] = lambda task: None
        self.present: dict[str, Presence] = {}

    def progress(self, rank: Rank) -> Progress | None:
        """Return how far a rank was at its agent's last beat."""
        there = self.present.get(rank.agent)
        found = there.progress if there else ()
        return next((each for each in found if each.head.incarnation == rank.incarnation), None)

    def call_all(self) -> None:
        """Remind every agent that was there of a weaver that has just begun."""
        for agent in self._roster.agents():
            if agent.state == "up":
                self._nudge(agent.id)

    async def hello(self, subject: str, data: bytes, reply: str) -> None:
        """An agent is there."""
        said = self._hellos.read(data)
        if said is None or not self._is_own(subject, said.agent):
            return
        self._later(said.agent, said, reply)

    async def beat(self, subject: str, data: bytes, reply: str) -> None:
        """An agent lives, and so far are its ranks."""
        if subject == ECHO:
            self._watching.echo()
            return
        said = self._glances.read(data)
        if said is None or not self._is_own(subject, said.agent):
            return
        there = self.present.get(said.agent)
        known = self._roster.agent(said.agent)
        if there is None or known is None or known.state != "up":
            self._nudge(said.agent)
            return
        there.seen, there.beat = self._clock(), data
        self._watching.heard(said.agent)
        if said.stands or self._watching.suspects:
            whole = self._beats.read(data)
            if whole is not None:
                self._watching.beat(whole)

    async def act(self, subject: str, data: bytes, reply: str) -> None:
        """A rank says something that cannot wait."""
        said, agent = self._acts.read(data), subjects.agent_of(subject)
        if said is None or agent is None:
            return
        if isinstance(said, Register):
            self._later(agent, said, "")
        else:
            self._take_in()  # it may be of a rank that has just come
            self._reports.take(agent, said)

    def _later(self, agent: str, said: Hello | Register, reply: str) -> None:
        """Take somebody in soon: many that come at once are stored together.

        Who says the same again before it is his turn, because that takes long, is heard once.
        """
        whose = "" if isinstance(said, Hello) else f"{said.head.job}/{said.head.incarnation}"
        self._waiting[agent, whose] = (said, reply)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._take_in_soon(), name="arrivals")
            self._working.add_done_callback(self.on_task)

    async def _take_in_soon(self) -> None:
        await asyncio.sleep(0)  # whoever else has come by now is taken in too
        while self._waiting:
            self._take_in()
            await asyncio.sleep(0)

    def _take_in(self) -> None:
        group = [(key, self._waiting.pop(key)) for key in list(islice(self._waiting, _TOGETHER))]
        if not group:
            return
        with self._state.together():
            rows: list[Rank] = []
            for (agent, _), (said, reply) in group:
                ranks = self._greet(said, reply) if isinstance(said, Hello) else (said,)
                rows += (row for row in (self._rank(agent, each) for each in ranks) if row)
            self._devices.use(*(row for row in rows if row.state == "up"))
            desired = {job: self._ledger.desired(job) for job in {row.job for row in rows}}
        for row in rows:
            welcome = Welcome(head_of(row), self._state.epoch, desired[row.job])
            self._sender.soon(row.agent, welcome)
        for row in rows:
            self._commands.registered(row)

    def _greet(self, said: Hello, reply: str) -> tuple[Register, ...]:
        """Take an agent in and return the ranks that it speaks for."""
        if said.epoch > self._state.epoch:
            _log.error("agent %s obeys epoch %d, a later one", said.agent, said.epoch)
            self._dropped["newer_epoch"] += 1
            return ()
        agent = self._roster.greet(said)
        self.present[agent.id] = Presence(self._clock())
        self._watching.heard(agent.id)
        self._devices.seen(agent.host, said.devices)
        self._sender.answer(reply, Greeting(own_head(), agent.id, self._state.epoch))
        return said.ranks

    def _rank(self, agent: str, said: Register) -> Rank | None:
        if said.head.rank != NO_RANK:
            return self._roster.register(agent, said)
        self._reports.launched(said.head)
        return None

    def _nudge(self, agent: str) -> None:
        """Have an agent say hello: a greeting with an epoch that is new to it."""
        now = self._clock()
        if now - self._nudged.get(agent, -NUDGE) >= NUDGE:
            self._nudged[agent] = now
            self._sender.soon(agent, Greeting(own_head(), agent, self._state.epoch))

    def _is_own(self, subject: str, agent: str) -> bool:
        if subjects.agent_of(subject) == agent:
            return True
        self._dropped["foreign_agent"] += 1
        return False
