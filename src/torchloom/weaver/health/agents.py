"""Agents come, say how far their ranks are, and pass on what ranks answer to commands."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import msgspec

from torchloom.bus import subjects
from torchloom.bus.api import RawMessage
from torchloom.bus.codec import MessageReader, encode
from torchloom.messages import plane
from torchloom.messages.membership import MembershipReport
from torchloom.messages.plane import (
    NO_RANK,
    Goodbye,
    Greeting,
    Heartbeat,
    Hello,
    Planned,
    Register,
    Welcome,
)
from torchloom.rules.control.command import schedule
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.commands.wire import planned
from torchloom.weaver.events import (
    AgentDown,
    BackgroundTasks,
    Dispatcher,
    LaunchRegistered,
    MemberReported,
    NodeReported,
    RankRegistered,
)
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.hangs import Hangs
from torchloom.weaver.health.heartbeats import Heartbeats, Presence, read_header
from torchloom.weaver.health.liveness import ECHO, AgentLiveness
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.reports import RankReports
from torchloom.weaver.sender import Sender, head_of, own_head
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import RankProcessRow

NUDGE = 2.0  # seconds between two reminders to an agent that has not said hello to this weaver
_TOGETHER = 50  # arrivals of one transaction
_SHARE = 0.25  # of the time that arrivals take, for whatever else is said meanwhile
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Arrival:
    """Somebody who waits to be taken in: what was said last, and all who wait for an answer."""

    said: Hello | Register
    words: int
    replies: tuple[str, ...]


class Agents:
    """Take in hellos, beats and acts; only what changed is stored."""

    def __init__(
        self,
        state: StateStore,
        roster: Roster,
        devices: DeviceMap,
        commands: CommandDriver,
        reports: RankReports,
        heartbeats: Heartbeats,
        liveness: AgentLiveness,
        hangs: Hangs,
        sender: Sender,
        events: Dispatcher,
        tasks: BackgroundTasks,
        dropped: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._roster = roster
        self._devices = devices
        self._commands = commands
        self._reports = reports
        self._heartbeats = heartbeats
        self._liveness = liveness
        self._hangs = hangs
        self._sender = sender
        self._events = events
        self._tasks = tasks
        self._dropped = dropped
        self._clock = clock
        self._hellos: MessageReader[Hello] = MessageReader(Hello, dropped)
        self._beats: MessageReader[Heartbeat] = MessageReader(Heartbeat, dropped)
        self._acts: MessageReader[plane.Message] = MessageReader(
            plane.FromRank | MembershipReport, dropped
        )
        self._nudged: dict[str, float] = {}
        self._waiting: dict[tuple[str, str], _Arrival] = {}
        self._working: asyncio.Task[None] | None = None
        self._up: dict[str, Presence] = {}  # agents that are up, by the subject of heartbeats

    def call_all(self) -> None:
        """Remind every agent that was there of a weaver that has just begun, or is back."""
        self._nudged.clear()  # what was said before was said to nobody
        for agent in self._roster.agents():
            if agent.state == "up":
                self._nudge(agent.id)

    async def hello(self, subject: str, data: bytes, reply: str) -> None:
        """An agent is there."""
        said = self._hellos.read(data)
        if said is None or not self._is_own(subject, said.agent):
            return
        heard = tuple(each for each in said.ranks if self._may_speak(said.agent, each))
        if len(heard) < len(said.ranks) and not subjects.account_mark(said.agent):
            return
        said = msgspec.structs.replace(said, ranks=heard)  # an account may launch more by itself
        words = hash(encode(msgspec.structs.replace(said, epoch=0)))
        if not self._greet_again(said, reply, words):
            self._later(said.agent, said, reply, words)

    def on_heartbeats(self, said: list[RawMessage]) -> None:
        """Agents live, and so far are their ranks; what is not as always is looked at after."""
        standing: list[bytes] = []
        for subject, data, _ in said:
            there = self._up.get(subject)
            seen = read_header(data)
            if seen is None or there is None or seen[0] != there.agent:
                self._stranger(subject, data)
                continue
            there.beat = data
            self._liveness.heard(there.agent)
            if seen[1] or there.stood:
                standing.append(data)
                there.stood = seen[1]
        for data in standing:
            if (whole := self._beats.read(data)) is not None:
                self._hangs.beat(whole)

    async def act(self, subject: str, data: bytes, reply: str) -> None:
        """A rank says something that cannot wait."""
        said, agent = self._acts.read(data), subjects.agent_of(subject)
        if said is None or agent is None or not self._may_speak(agent, said):
            return
        if isinstance(said, Register):
            self._later(agent, said)
        elif isinstance(said, Goodbye) and said.head.rank == NO_RANK:
            self._leave(agent)
        else:
            self._take_in()  # it may be of a rank that has just come
            if isinstance(said, MembershipReport):
                self._events.publish(MemberReported(agent, said))
            else:
                self._reports.take(agent, said)

    def _leave(self, agent: str) -> None:
        """An agent has done its work, and its silence means nothing."""
        self._take_in()
        self._heartbeats.present.pop(agent, None)
        self._up.pop(subjects.heartbeat(agent), None)
        self._roster.agent_left(agent)
        self._liveness.left(agent)

    def _later(self, agent: str, said: Hello | Register, reply: str = "", words: int = 0) -> None:
        """Take somebody in soon: many that come at once are stored together.

        Who says the same again before it is his turn is heard once, and answered as often as asked.
        """
        whose = "" if isinstance(said, Hello) else f"{said.head.job}/{said.head.incarnation}"
        before = self._waiting.get((agent, whose))
        replies = (*(before.replies if before else ()), reply)
        self._waiting[agent, whose] = _Arrival(said, words, replies)
        if self._working is None or self._working.done():
            self._working = self._tasks.start(self._take_in_soon(), "registrations")

    async def _take_in_soon(self) -> None:
        await asyncio.sleep(0)  # whoever else has come by now is taken in too
        while self._waiting:
            began = self._clock()
            self._take_in()
            await asyncio.sleep(_SHARE * (self._clock() - began))

    def _take_in(self) -> None:
        group = [(key, self._waiting.pop(key)) for key in list(islice(self._waiting, _TOGETHER))]
        if not group:
            return
        with self._state.together():
            rows: list[RankProcessRow] = []
            for (agent, _), came in group:
                said = came.said
                ranks = self._greet(said, came) if isinstance(said, Hello) else (said,)
                rows += (row for row in (self._rank(agent, each) for each in ranks) if row)
            self._devices.use(*(row for row in rows if row.state == "up"))
        self._welcome(rows)
        for row in rows:
            self._commands.registered(row)
            self._events.publish(RankRegistered(row))

    def _welcome(self, rows: list[RankProcessRow]) -> None:
        later = {row.job for row in rows if row.generation}  # before the first nothing was
        changes = {job: self._changes(job) for job in later}
        for row in rows:
            welcome = Welcome(head_of(row), self._state.epoch, changes.get(row.job, ()))
            self._sender.soon(row.agent, welcome)

    def _changes(self, job: str) -> tuple[Planned, ...]:
        """Return what has been decided about a job's knobs, for whoever comes now."""
        return tuple(map(planned, schedule(self._commands.state(job).audit)))

    def _greet_again(self, said: Hello, reply: str, words: int) -> bool:
        """Greet one that is up with all of its ranks and says what it said when it came: there is
        nothing to store. Tell whether it was such a one."""
        there = self._up.get(subjects.heartbeat(said.agent))
        if there is None or there.hello != words or said.epoch > self._state.epoch:
            return False
        found = [self._roster.of_life(each.head.incarnation) for each in said.ranks]
        rows = [row for row in found if row and (row.agent, row.state) == (said.agent, "up")]
        if len(rows) < len(found):
            return False
        self._liveness.heard(said.agent)
        self._sender.answer(reply, Greeting(own_head(), said.agent, self._state.epoch))
        self._welcome(rows)
        for row in rows:
            self._commands.registered(row)
        return True

    def _greet(self, said: Hello, came: _Arrival) -> tuple[Register, ...]:
        """Take an agent in and return the ranks that it speaks for."""
        if said.epoch > self._state.epoch:
            _log.error("agent %s obeys epoch %d, a later one", said.agent, said.epoch)
            self._dropped["newer_epoch"] += 1
            return ()
        agent = self._roster.greet(said)
        there = self._heartbeats.present.setdefault(agent.id, Presence(agent.id))
        there.hello = came.words
        self._up[subjects.heartbeat(agent.id)] = there
        self._liveness.heard(agent.id)
        if not subjects.account_mark(agent.id):  # the host is for all, and not its to describe
            self._devices.seen(agent.host, said.devices)
            self._events.publish(NodeReported(said))
        for reply in came.replies:
            self._sender.answer(reply, Greeting(own_head(), agent.id, self._state.epoch))
        return said.ranks

    def _rank(self, agent: str, said: Register) -> RankProcessRow | None:
        if said.head.rank != NO_RANK:
            self._hangs.registered(said)
            return self._roster.register(agent, said)
        self._reports.launched(said.head)
        self._events.publish(LaunchRegistered(agent, said))
        return None

    def on_agent_down(self, down: AgentDown) -> None:
        """Ignore the heartbeats of an agent until it registers again."""
        self._up.pop(subjects.heartbeat(down.agent), None)

    def _stranger(self, subject: str, data: bytes) -> None:
        """Hear what is no beat of an agent that is up: one that has not said hello, our own word,
        or what has to be counted."""
        if subject == ECHO:
            self._liveness.echo()
        elif (beat := self._beats.read(data)) is not None and self._is_own(subject, beat.agent):
            self._nudge(beat.agent)

    def _nudge(self, agent: str) -> None:
        """Have an agent say hello: a greeting with an epoch that is new to it."""
        now = self._clock()
        if now - self._nudged.get(agent, -NUDGE) >= NUDGE:
            self._nudged[agent] = now
            self._sender.soon(agent, Greeting(own_head(), agent, self._state.epoch))

    def _may_speak(self, agent: str, said: plane.Message) -> bool:
        """Tell whether an agent may say this: of its own job, or of itself."""
        is_its_own = isinstance(said, Goodbye) and said.head.rank == NO_RANK
        if is_its_own or self._roster.may_speak(agent, said.head.job):
            return True
        self._dropped["foreign_job"] += 1
        return False

    def _is_own(self, subject: str, agent: str) -> bool:
        if subjects.agent_of(subject) == agent:
            return True
        self._dropped["foreign_agent"] += 1
        return False
