"""The node agent: it checks messages of ranks, spools records, passes on acts."""

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torchloom import settings
from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost
from torchloom.bus.codec import MessageReader, encode
from torchloom.bus.spool.spool import LIMIT, Spool, SpoolFull
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.node_agent import server
from torchloom.launch.node_agent.checkpoints import CheckpointWorker
from torchloom.launch.node_agent.gpus import Gpus, HealthWatch
from torchloom.launch.node_agent.server import KnownRanks, RankConnection, RankServer
from torchloom.launch.node_agent.stacks import StackTaker
from torchloom.launch.node_agent.uplink import (
    HEARTBEAT_PERIOD,
    UNANSWERED,
    AgentIdentity,
    WeaverUplink,
)
from torchloom.messages.membership import MembershipReport, ProcessReports, ToLaunch
from torchloom.messages.plane import (
    NO_RANK,
    Applied,
    Commit,
    Decided,
    DeviceEvent,
    Event,
    FromRank,
    Goodbye,
    Kept,
    Kill,
    Message,
    Metrics,
    OwnStacks,
    RankRefusal,
    Ready,
    Register,
    Remove,
    Stacks,
    TakeStacks,
)

ACTS = (Register, Ready, RankRefusal, Decided, Applied, Goodbye)  # passed on at once
_KEPT_AFTER = 1.0  # seconds until a rank learns that its records are on the disk: it costs it time


class WeaverSender(Protocol):
    """The way to the weaver."""

    greeted: bool

    def hurry(self) -> None: ...
    def act(self, data: bytes) -> None: ...
    def more(self, urgent: bool) -> None: ...


class Intake:
    """Handles each message of a rank before the next one is read."""

    def __init__(
        self,
        ranks: KnownRanks,
        spool: Spool,
        up: WeaverSender,
        dropped: Counter[str],
        may_speak_for: Callable[[str, int], bool] = server.may_speak_for,
        on_stacks: Callable[[OwnStacks], None] = lambda said: None,
    ) -> None:
        self._ranks = ranks
        self._spool = spool
        self._up = up
        self._dropped = dropped
        self._may_speak_for = may_speak_for
        self._on_stacks = on_stacks
        self._reader = MessageReader[Message](FromRank | OwnStacks | MembershipReport, dropped)
        self._owed: dict[RankConnection, asyncio.TimerHandle] = {}

    def take(self, line: RankConnection, data: bytes) -> None:
        """Deal with one message."""
        message = self._reader.read(data)
        if message is None:
            return
        try:
            if isinstance(message, Register):
                self._register(line, message, data)
            elif not self._is_its_own(line, message):
                return
            elif isinstance(message, OwnStacks):
                self._on_stacks(message)
            elif isinstance(message, MembershipReport):
                self._talk(message, data)
            else:
                self._record(line, message, data)
        except SpoolFull:
            self._dropped["spool_full"] += 1
            line.close()  # the process that has it keeps it, and tries again

    def hung_up(self, line: RankConnection) -> None:
        """Note that a connection is gone."""
        if (timer := self._owed.pop(line, None)) is not None:
            timer.cancel()
        self._ranks.hung_up(line)
        self._up.hurry()

    def _register(self, line: RankConnection, message: Register, data: bytes) -> None:
        head = message.head
        if line.head is None and not self._may_speak_for(head.job, line.pid):
            self._dropped["foreign_job"] += 1
            line.close()
            return
        if line.head is not None and not self._is_its_own(line, message):
            return
        self._spool.open(head, line.pid, line.started)
        line.head = head
        if not self._ranks.register(message, line):
            self._dropped["old_incarnation"] += 1
        else:
            self._up.act(data)
        self._tell_kept(line)

    def _is_its_own(self, line: RankConnection, message: Message) -> bool:
        """Tell whether the message is of the line's own incarnation; count it if not."""
        own, head = line.head, message.head
        if own is None:
            self._dropped["unregistered"] += 1
        elif own.job != head.job:
            self._dropped["foreign_job"] += 1
        elif (own.rank, own.incarnation) != (head.rank, head.incarnation):
            self._dropped["foreign_rank"] += 1
        else:
            return True
        return False

    def _talk(self, message: Message, data: bytes) -> None:
        """Pass on what is said about membership, of whatever generation: the weaver answers it."""
        if isinstance(message, ProcessReports) != (message.head.rank == NO_RANK):
            self._dropped["foreign_rank"] += 1
        elif isinstance(message, ProcessReports) and not self._up.greeted:
            self._dropped["unheard"] += 1  # the next one, within a second, contains all of it
        else:
            self._up.act(data)

    def _record(self, line: RankConnection, message: Message, data: bytes) -> None:
        points = _points(message) if isinstance(message, Metrics) else None
        self._spool.append(message.head, data, points)
        if isinstance(message, ACTS):
            if self._ranks.is_current(message.head):
                self._up.act(data)
            else:
                self._dropped["old_generation"] += 1  # the record of it is kept all the same
        self._up.more(urgent=isinstance(message, Event))
        if line not in self._owed:
            loop = asyncio.get_running_loop()
            self._owed[line] = loop.call_later(_KEPT_AFTER, self._tell_kept, line)

    def _tell_kept(self, line: RankConnection) -> None:
        if (timer := self._owed.pop(line, None)) is not None:
            timer.cancel()
        if line.head is not None:
            line.send(Kept(line.head, self._spool.last(line.head)))


def _points(metrics: Metrics) -> int:
    """Return how many numbers are in a message; each row begins with its step and its time."""
    return sum(value is not None for row in metrics.rows for value in row[2:])


_TURN = 1.0
_MOMENT = 0.01


class NodeAgent:
    """One node's agent. `run` serves until it is cancelled; ranks keep running without it."""

    def __init__(
        self,
        me: AgentIdentity,
        bus: Bus,
        address: Path,
        spool: Path,
        limit: int = LIMIT,
        unanswered: float = UNANSWERED,
        gpus: Gpus | None = None,
        heartbeat_period: float = HEARTBEAT_PERIOD,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._me = me
        self._bus = bus
        self._status = address.with_suffix(".json")
        self._ranks = KnownRanks()
        self._spool = Spool(spool, me.agent, limit)
        self._uplink = WeaverUplink(
            me,
            bus,
            self._spool,
            self._ranks,
            self.dropped,
            self._pass_down,
            unanswered,
            heartbeat_period,
        )
        self._health = HealthWatch(me.head(), gpus, self._say_health) if gpus else None
        self._stacks = StackTaker(me.agent, self._ranks, self._publish, _is_alive)
        self._storing = CheckpointWorker(me.agent, self._say_stored, settings.environment())
        handler = Intake(
            self._ranks,
            self._spool,
            self._uplink,
            self.dropped,
            on_stacks=self._stacks.answered,
        )
        self._server = RankServer(address, handler, self.dropped)

    async def run(self) -> None:
        """Serve. If one part fails all stop, and the error surfaces."""
        await self._server.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._uplink.run(), name="uplink")
                if self._health is not None:
                    tasks.create_task(self._health.run(), name="health")
                while True:
                    self.turn()
                    await asyncio.sleep(_TURN)
        finally:
            await self._stacks.close()
            await self._storing.close()
            await self._server.close()
            self._spool.close()

    async def flush(self, limit: float) -> bool:
        """Come back when ranks have no more to say and the weaver has all; false: time was up.

        A weaver that was never there is not waited for.
        """
        deadline = time.monotonic() + limit
        while self._ranks.are_there or self._spool.pending or self._storing.is_busy:
            if not self._uplink.epoch or time.monotonic() > deadline:
                return False
            await asyncio.sleep(_MOMENT)
        await self._uplink.say_goodbye()
        return True

    def turn(self) -> None:
        """Forget who is gone, and leave word of how things are."""
        self._ranks.bury(_is_alive)
        for who in self._spool.incarnations():
            if not _is_alive(who.pid, who.started):
                self._spool.remove(who)
        self._tell()

    def _pass_down(self, message: Message) -> None:
        """Bring what the weaver says to the rank that it is for."""
        if isinstance(message, Kill):
            self._kill(message)
            return
        if isinstance(message, TakeStacks):
            self._stacks.start(message)
            return
        if isinstance(message, Commit | Remove):
            self._storing.take(message)
            return
        if isinstance(message, ToLaunch):
            self._tell_launch(message)
            return
        self._ranks.generation_seen(message.head)
        line = self._ranks.connection_to(message.head)
        if line is None:
            self.dropped["no_such_rank"] += 1
        else:
            line.send(message)

    def _tell_launch(self, message: Message) -> None:
        """Send an order to the launch process of a job's ranks."""
        launches = self._ranks.launches(message.head.job)
        for line in launches:
            line.send(message)
        if not launches:
            self.dropped["no_such_launch"] += 1

    async def _publish(self, said: Stacks) -> None:
        await self._bus.publish(subjects.stacks(self._me.agent), encode(said))

    async def _say_stored(self, said: Message) -> None:
        await self._bus.publish(subjects.checkpoints(self._me.agent), encode(said))

    async def _say_health(self, said: DeviceEvent) -> bool:
        """Tell the weaver of a device; false while none is there."""
        if not self._uplink.greeted:
            return False
        with contextlib.suppress(BusLost):
            await self._bus.publish(subjects.devices(self._me.agent), encode(said))
            return True
        return False

    def _kill(self, kill: Kill) -> None:
        """End this incarnation of a rank and no other; its launch process sees the end."""
        launches = self._ranks.launches(kill.head.job)
        entry = self._ranks.entry_of(kill.head)
        for line in launches:
            line.send(kill)
        if entry is not None and _is_alive(*entry.process):
            process = ProcessIdentity.of(entry.process[0])
            if process is not None:
                process.send(kill.signal)
        elif not launches:
            self.dropped["no_such_rank"] += 1

    def _tell(self) -> None:
        """Write the agent's state for readers; a full disk loses only this."""
        status = {
            "agent": self._me.agent,
            "pid": self._me.pid,
            "connected": self._bus.connected,
            "greeted": self._uplink.greeted,
            "epoch": self._uplink.epoch,
            "ranks": len(self._ranks.registers()),
            "pending": self._spool.pending,
            "spool_bytes": self._spool.size,
            "dropped": dict(self.dropped),
            "gpus": self._health.facts if self._health else {},
        }
        partial = self._status.with_suffix(".partial")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(status) + "\n")
            partial.replace(self._status)


def _is_alive(pid: int, started: int) -> bool:
    """Tell whether this very process lives; where that cannot be seen, it may."""
    if not os.path.isdir("/proc/self"):
        return ProcessIdentity.of(pid) is not None
    return started != 0 and server.start_time(pid) == started
