"""Handle what agents send: registrations, heartbeats, and the messages of their ranks."""

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
from torchloom.weaver.commands.driver import CommandDriver, planned
from torchloom.weaver.events import (
    AgentDown,
    BackgroundTasks,
    Dispatcher,
    LaunchRegistered,
    MemberReported,
    NodeReported,
    RankRegistered,
    Sender,
    head_of,
    own_head,
)
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.hangs import Hangs
from torchloom.weaver.health.heartbeats import (
    ECHO,
    AgentLiveness,
    Heartbeats,
    Presence,
    read_header,
)
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.reports import RankReports
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import RankProcessRow

NUDGE = 2.0  # seconds between two requests to an agent to register with this weaver
_TOGETHER = 50  # registrations of one transaction
_SHARE = 0.25  # of the time that registrations take, left to other messages
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Arrival:
    """A registration that waits for its transaction, and the requests that wait for a reply."""

    message: Hello | Register
    digest: int
    replies: tuple[str, ...]


class Agents:
    """Store what registrations change; pass heartbeats and messages to the parts."""

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
        self._heartbeat_reader: MessageReader[Heartbeat] = MessageReader(Heartbeat, dropped)
        self._acts: MessageReader[plane.Message] = MessageReader(
            plane.FromRank | MembershipReport, dropped
        )
        self._nudged: dict[str, float] = {}
        self._waiting: dict[tuple[str, str], _Arrival] = {}
        self._working: asyncio.Task[None] | None = None
        self._up: dict[str, Presence] = {}  # agents that are up, by the subject of heartbeats

    def call_all(self) -> None:
        """Have every agent register that was up: the weaver has started, or is connected again."""
        self._nudged.clear()  # earlier requests may not have arrived
        for agent in self._roster.agents():
            if agent.state == "up":
                self._nudge(agent.id)

    async def on_hello(self, subject: str, data: bytes, reply: str) -> None:
        """Handle the registration of an agent."""
        message = self._hellos.read(data)
        if message is None or not self._is_own(subject, message.agent):
            return
        ranks = tuple(each for each in message.ranks if self._may_report(message.agent, each))
        if len(ranks) < len(message.ranks) and not subjects.account_mark(message.agent):
            return
        message = msgspec.structs.replace(message, ranks=ranks)  # an account may launch other jobs
        digest = hash(encode(msgspec.structs.replace(message, epoch=0)))
        if not self._greet_again(message, reply, digest):
            self._later(message.agent, message, reply, digest)

    def on_heartbeats(self, received: list[RawMessage]) -> None:
        """Keep the heartbeats of agents; examine those of ranks that make no progress after all."""
        standing: list[bytes] = []
        for subject, data, _ in received:
            presence = self._up.get(subject)
            seen = read_header(data)
            if seen is None or presence is None or seen[0] != presence.agent:
                self._on_other(subject, data)
                continue
            presence.heartbeat = data
            self._liveness.seen(presence.agent)
            if seen[1] or presence.stood:
                standing.append(data)
                presence.stood = seen[1]
        for data in standing:
            if (whole := self._heartbeat_reader.read(data)) is not None:
                self._hangs.on_heartbeat(whole)

    async def on_act(self, subject: str, data: bytes, reply: str) -> None:
        """Handle a message of a rank that does not wait for a batch of records."""
        message, agent = self._acts.read(data), subjects.agent_of(subject)
        if message is None or agent is None or not self._may_report(agent, message):
            return
        if isinstance(message, Register):
            self._later(agent, message)
        elif isinstance(message, Goodbye) and message.head.rank == NO_RANK:
            self._leave(agent)
        else:
            self._store_registrations()  # it may be of a rank that has just registered
            if isinstance(message, MembershipReport):
                self._events.publish(MemberReported(agent, message))
            else:
                self._reports.take(agent, message)

    def _leave(self, agent: str) -> None:
        """Handle that an agent leaves in order: its silence is no loss."""
        self._store_registrations()
        self._heartbeats.present.pop(agent, None)
        self._up.pop(subjects.heartbeat(agent), None)
        self._roster.agent_left(agent)
        self._liveness.left(agent)

    def _later(
        self, agent: str, message: Hello | Register, reply: str = "", digest: int = 0
    ) -> None:
        """Store a registration soon, with others that arrive at the same time.

        A repeated one replaces the first; each gets its reply.
        """
        head = message.head
        whose = "" if isinstance(message, Hello) else f"{head.job}/{head.incarnation}"
        before = self._waiting.get((agent, whose))
        replies = (*(before.replies if before else ()), reply)
        self._waiting[agent, whose] = _Arrival(message, digest, replies)
        if self._working is None or self._working.done():
            self._working = self._tasks.start(self._store_soon(), "registrations")

    async def _store_soon(self) -> None:
        await asyncio.sleep(0)  # what has arrived by now is stored in the same transaction
        while self._waiting:
            began = self._clock()
            self._store_registrations()
            await asyncio.sleep(_SHARE * (self._clock() - began))

    def _store_registrations(self) -> None:
        group = [(key, self._waiting.pop(key)) for key in list(islice(self._waiting, _TOGETHER))]
        if not group:
            return
        with self._state.together():
            rows: list[RankProcessRow] = []
            for (agent, _), arrival in group:
                message = arrival.message
                ranks = self._greet(message, arrival) if isinstance(message, Hello) else (message,)
                rows += (row for row in (self._rank(agent, each) for each in ranks) if row)
            self._devices.use(*(row for row in rows if row.state == "up"))
        self._welcome(rows)
        for row in rows:
            self._commands.registered(row)
            self._events.publish(RankRegistered(row))

    def _welcome(self, rows: list[RankProcessRow]) -> None:
        later = {row.job for row in rows if row.generation or row.life > 1}  # others: no changes
        changes = {job: self._changes(job) for job in later}
        for row in rows:
            welcome = Welcome(head_of(row), self._state.epoch, changes.get(row.job, ()))
            self._sender.soon(row.agent, welcome)

    def _changes(self, job: str) -> tuple[Planned, ...]:
        """Return the changes of a job's knobs, for a rank that has just registered."""
        return tuple(map(planned, schedule(self._commands.state(job).audit)))

    def _greet_again(self, message: Hello, reply: str, digest: int) -> bool:
        """Answer an agent that repeats its registration while it and its ranks are up.

        Nothing is stored. False where it is not such a one.
        """
        presence = self._up.get(subjects.heartbeat(message.agent))
        if presence is None or presence.hello != digest or message.epoch > self._state.epoch:
            return False
        found = [self._roster.of_incarnation(each.head.incarnation) for each in message.ranks]
        rows = [row for row in found if row and (row.agent, row.state) == (message.agent, "up")]
        if len(rows) < len(found):
            return False
        self._liveness.seen(message.agent)
        self._sender.answer(reply, Greeting(own_head(), message.agent, self._state.epoch))
        self._welcome(rows)
        for row in rows:
            self._commands.registered(row)
        return True

    def _greet(self, message: Hello, arrival: _Arrival) -> tuple[Register, ...]:
        """Register an agent and return its ranks."""
        if message.epoch > self._state.epoch:
            _log.error("agent %s obeys epoch %d, a later one", message.agent, message.epoch)
            self._dropped["newer_epoch"] += 1
            return ()
        agent = self._roster.greet(message)
        presence = self._heartbeats.present.setdefault(agent.id, Presence(agent.id))
        presence.hello = arrival.digest
        self._up[subjects.heartbeat(agent.id)] = presence
        self._liveness.seen(agent.id)
        if not subjects.account_mark(agent.id):  # an account's agent does not describe the host
            self._devices.seen(agent.host, message.devices)
            self._events.publish(NodeReported(message))
        for reply in arrival.replies:
            self._sender.answer(reply, Greeting(own_head(), agent.id, self._state.epoch))
        return message.ranks

    def _rank(self, agent: str, message: Register) -> RankProcessRow | None:
        if message.head.rank != NO_RANK:
            self._hangs.registered(message)
            return self._roster.register(agent, message)
        self._reports.launched(message.head)
        self._events.publish(LaunchRegistered(agent, message))
        return None

    def on_agent_down(self, down: AgentDown) -> None:
        """Ignore the heartbeats of an agent until it registers again."""
        self._up.pop(subjects.heartbeat(down.agent), None)

    def _on_other(self, subject: str, data: bytes) -> None:
        """Handle what is not the heartbeat of a registered agent: our own echo, the heartbeat of
        an agent that has not registered, or a malformed one."""
        if subject == ECHO:
            self._liveness.echo()
        elif (heartbeat := self._heartbeat_reader.read(data)) is not None and self._is_own(
            subject, heartbeat.agent
        ):
            self._nudge(heartbeat.agent)

    def _nudge(self, agent: str) -> None:
        """Have an agent register: it does when a greeting has an epoch that is new to it."""
        now = self._clock()
        if now - self._nudged.get(agent, -NUDGE) >= NUDGE:
            self._nudged[agent] = now
            self._sender.soon(agent, Greeting(own_head(), agent, self._state.epoch))

    def _may_report(self, agent: str, message: plane.Message) -> bool:
        """Tell whether an agent may send this: about its own job, or about itself."""
        is_its_own = isinstance(message, Goodbye) and message.head.rank == NO_RANK
        if is_its_own or self._roster.may_speak(agent, message.head.job):
            return True
        self._dropped["foreign_job"] += 1
        return False

    def _is_own(self, subject: str, agent: str) -> bool:
        if subjects.agent_of(subject) == agent:
            return True
        self._dropped["foreign_agent"] += 1
        return False
