"""The agent's way to the weaver: hello, heartbeats, batches until they are stored, acts at once.

Nothing here is waited for by a rank. While the bus or the weaver is away, records stay in the spool
and acts in a queue; a weaver that comes back is sent a hello first and then what it does not know.
"""

import asyncio
import contextlib
import json
import logging
import random
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, NoReply, TooLong
from torchloom.bus.codec import Garbled, MessageReader, decode, encode
from torchloom.bus.nats.client import Caller, NoWay, new_key
from torchloom.bus.spool.spool import Spool
from torchloom.launch import protocol, wire
from torchloom.launch.node_agent.server import KnownRanks
from torchloom.launch.protocol import (
    TO_NODE_AGENT,
    AgentProof,
    PlaneAddress,
    PlanePassage,
    PlaneRefusal,
    PlaneRequest,
    ProofRequest,
)
from torchloom.launch.wire import BadFrame
from torchloom.messages.membership import ToLaunch, ToMember
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Batch,
    Commit,
    Device,
    Goodbye,
    Greeting,
    Head,
    Heartbeat,
    Hello,
    Kill,
    Message,
    Remove,
    Stored,
    ToAgent,
)
from torchloom.unix import HEADER

_PATIENCE = 10.0  # seconds for the launch process and its plane
_LONGEST = 1 << 20  # bytes of what they say
HEARTBEAT_PERIOD = 1.0  # seconds from one to the next, if nothing happens
_SOONEST = 0.05  # seconds between two heartbeats, at least
_HELLO = 2.0  # seconds a weaver has to answer
_AGAIN = 0.5  # seconds between two hellos
_LATEST = 8.0  # seconds between two tries, at most
UNANSWERED = 5.0  # seconds without word of a batch before it counts as lost
_GATHER = 0.2  # seconds that records wait for others to go along
_GOODBYE = 1.0  # seconds for a last word to leave
_OF_AN_EPOCH = Kill | Stored | Commit | Remove | ToMember | ToLaunch  # all say their own
_MOST_ACTS = 10_000  # that wait for the bus; all are in the spool as well
_log = logging.getLogger(__name__)


class TunnelClient:
    """Asks for the way whenever there is none; `find` is what the bus wants to know."""

    def __init__(self, launcher: wire.LaunchAddress, token: str, node: str, name: str) -> None:
        self._launcher = launcher
        self._token = token
        self._node = node
        self._name = name
        self._seed, self._key = new_key()

    async def find(self) -> Caller:
        """Return how the plane's NATS is reached; raises NoWay with what is said instead."""
        channel: socket.socket | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                channel = await self._call()
                return self._caller(await self._ask(channel), channel)
        except (OSError, ValueError, BadFrame) as error:  # a timeout is an OSError
            _hang_up(channel)
            why = str(error) or type(error).__name__
            raise NoWay(f"no way to the plane through {self._launcher}: {why}") from error
        except BaseException:
            _hang_up(channel)
            raise

    async def _call(self) -> socket.socket:
        where, loop = self._launcher, asyncio.get_running_loop()
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        channel = socket.socket(family, kind, protocol)
        channel.setblocking(False)
        try:
            await loop.sock_connect(channel, address)
            wire.watch(channel)
        except BaseException:
            channel.close()
            raise
        return channel

    async def _ask(self, channel: socket.socket) -> PlaneAddress | PlanePassage | PlaneRefusal:
        challenge = wire.nonce()
        asked = protocol.decode(await _receive(channel), TO_NODE_AGENT)
        if not isinstance(asked, ProofRequest):
            raise BadFrame
        proof = wire.proof(self._token, "agent", asked.challenge)
        await _say(channel, AgentProof(proof).to_wire())
        await _say(channel, PlaneRequest(self._node, self._key, challenge).to_wire())
        answer = protocol.decode(await _receive(channel), TO_NODE_AGENT)
        if not isinstance(answer, PlaneAddress | PlanePassage | PlaneRefusal):
            raise BadFrame
        if not wire.is_proof(answer.proof, self._token, "launcher", challenge):
            raise NoWay(f"the process that answers at {self._launcher} does not know our job")
        return answer

    def _caller(
        self, answer: PlaneAddress | PlanePassage | PlaneRefusal, channel: socket.socket
    ) -> Caller:
        match answer:
            case PlaneRefusal():
                raise NoWay(answer.why)
            case PlanePassage():
                known = (answer.token, self._seed)
                return Caller(f"nats://{self._launcher}", self._name, known, channel=channel)
        channel.close()
        known, authority = (answer.token, self._seed), answer.authority
        tls = ssl.create_default_context(cadata=authority) if authority else None
        return Caller(answer.nats, self._name, known, tls)


class Vouched:
    """Asks the plane that started this agent, over a line that was inherited from it."""

    def __init__(self, line: int, name: str) -> None:
        self._line = socket.socket(fileno=line)
        self._line.setblocking(False)
        self._name = name
        self._seed, self._key = new_key()

    async def find(self) -> Caller:
        """Return how the plane's NATS is reached; raises NoWay with what is said instead."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await _say(self._line, {"ask": "admit", "key": self._key})
                answer = await _receive(self._line)
                given = answer["ok"]
                authority = str(given["authority"])
                tls = ssl.create_default_context(cadata=authority) if authority else None
                known = (str(given["token"]), self._seed)
                return Caller(str(given["nats"]), self._name, known, tls)
        except (OSError, ValueError, KeyError) as error:  # a timeout is an OSError
            raise NoWay(f"the plane does not accept this agent: {error}") from error


async def _receive(channel: socket.socket) -> Mapping[str, Any]:
    """Return one message; what follows it is not touched."""
    length, _ = HEADER.unpack(await _exactly(channel, HEADER.size))
    if length > _LONGEST:
        raise ValueError("the process that answers uses another protocol")
    message = json.loads(await _exactly(channel, length))
    if not isinstance(message, dict):
        raise ValueError("the process that answers uses another protocol")
    return message


async def _exactly(channel: socket.socket, length: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < length:
        more = await loop.sock_recv(channel, length - len(data))
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
    return data


async def _say(channel: socket.socket, message: Mapping[str, Any]) -> None:
    text = json.dumps(message).encode()
    await asyncio.get_running_loop().sock_sendall(channel, HEADER.pack(len(text), 0) + text)


def _hang_up(channel: socket.socket | None) -> None:
    if channel is not None:
        channel.close()


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Who this agent is."""

    agent: str
    host: str
    boot: str
    pid: int
    devices: tuple[Device, ...] = ()
    cpus: int = 0
    memory_mb: int = 0

    def head(self) -> Head:
        """Return what stands at the head of the agent's own messages."""
        return Head(VERSION, "", 0, NO_RANK, f"{self.boot}/{self.pid}")


@dataclass(slots=True)
class _Wants:
    """What the sender has to do."""

    some: asyncio.Event = field(default_factory=asyncio.Event)
    urgent: asyncio.Event = field(default_factory=asyncio.Event)


class WeaverUplink:
    """Everything that goes to the weaver, and what comes from it."""

    def __init__(
        self,
        me: AgentIdentity,
        bus: Bus,
        spool: Spool,
        ranks: KnownRanks,
        dropped: Counter[str],
        on_down: Callable[[Message], None],
        unanswered: float = UNANSWERED,
        period: float = HEARTBEAT_PERIOD,
    ) -> None:
        self.epoch = 0
        self.greeted = False
        self._me = me
        self._bus = bus
        self._spool = spool
        self._ranks = ranks
        self._dropped = dropped
        self._on_down = on_down
        self._reader = MessageReader[Message](ToAgent, dropped)
        self._window = 1
        self._held = False  # whether records wait for an answer to others
        self._unanswered = unanswered
        self._period = period
        self._has_news = asyncio.Event()  # for a heartbeat before its time
        self._acts: deque[bytes] = deque(maxlen=_MOST_ACTS)
        self._wants = _Wants()
        self._acting = asyncio.Event()
        self._alone = asyncio.Event()  # no weaver has greeted us
        self._alone.set()
        self._answered_at = time.monotonic()
        self._is_leaving = False

    # What the intake calls.

    def act(self, data: bytes) -> None:
        """Pass on what a rank does, as soon as the bus takes it."""
        if len(self._acts) == _MOST_ACTS:
            self._dropped["act"] += 1
        self._acts.append(data)
        self._acting.set()

    def hurry(self) -> None:
        """A rank has hung up: report how far all had come before its end is seen."""
        self._has_news.set()

    def more(self, urgent: bool) -> None:
        """There are records to be sent; urgent ones do not wait for others."""
        self._wants.some.set()
        if urgent:
            self._wants.urgent.set()

    async def say_goodbye(self) -> None:
        """Tell the weaver that this agent leaves in order; its silence means nothing from now."""
        self._is_leaving = True
        with contextlib.suppress(BusLost):
            goodbye = encode(Goodbye(self._me.head(), 0))
            await self._bus.publish(subjects.acts(self._me.agent), goodbye)
            await self._bus.flush(_GOODBYE)

    # What runs.

    async def run(self) -> None:
        """Serve until cancelled."""
        self._bus.on_lost(self._lose)
        self._bus.on_back(self._lose)  # the weaver that is there now may not know us
        await self._bus.subscribe(subjects.down(self._me.agent), self._handle)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._introduce(), name="hello")
            tasks.create_task(self._heartbeats(), name="heartbeats")
            tasks.create_task(self._send_acts(), name="acts")
            tasks.create_task(self._send_records(), name="records")

    async def _introduce(self) -> None:
        """Say hello until we are greeted, and again whenever that may have been forgotten."""
        tries = 0
        while True:
            await self._alone.wait()
            can_speak = self._bus.connected and not self._is_leaving
            greeted = can_speak and await self._hello()
            tries = 0 if greeted or not self._bus.connected else tries + 1
            if not greeted:  # many agents may have lost one weaver: they do not come all at once
                most = min(_AGAIN * 2**tries, _LATEST)
                await asyncio.sleep(random.uniform(most / 2, most))

    async def _hello(self) -> bool:
        me = self._me
        known = self._ranks.registers()
        who = (me.head(), me.agent, me.host, me.boot, me.pid)
        hello = Hello(*who, self.epoch, me.devices, known, me.cpus, me.memory_mb)
        try:
            answer = await self._bus.request(subjects.hello(me.agent), encode(hello), _HELLO)
            greeting = decode(answer, Greeting)
        except (BusLost, NoReply):
            return False
        except (Garbled, TooLong) as error:
            _log.error("no greeting: %s", error)
            self._dropped["greeting"] += 1
            return False
        return self._take_greeting(greeting)

    def _take_greeting(self, greeting: Greeting) -> bool:
        if greeting.epoch < self.epoch:
            self._dropped["old_epoch"] += 1
            return False
        self.epoch = greeting.epoch
        self._window = max(1, greeting.window)
        self._spool.again()
        self._answered_at = time.monotonic()
        self.greeted = True
        self._alone.clear()
        self._acting.set()
        self.more(urgent=True)
        return True

    def _lose(self) -> None:
        """Assume that no weaver knows us any more."""
        self.greeted = False
        self._alone.set()

    async def _heartbeats(self) -> None:
        while True:
            self._has_news.clear()
            await self.heartbeat()
            await asyncio.sleep(_SOONEST)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), self._period - _SOONEST)

    async def heartbeat(self) -> None:
        """Say once that the agent lives, and how far its ranks are."""
        self._look_for_answers()
        self._acting.set()
        if not self._bus.connected or self._is_leaving:
            return
        message = Heartbeat(self._me.head(), self._me.agent, time.time(), self._ranks.progress())
        try:
            await self._bus.publish(subjects.heartbeat(self._me.agent), encode(message))
        except (BusLost, TooLong) as error:
            _log.debug("no heartbeat: %s", error)

    def _look_for_answers(self) -> None:
        if not self._spool.under_way:
            self._answered_at = time.monotonic()
        elif self.greeted and time.monotonic() - self._answered_at > self._unanswered:
            self._lose()

    async def _send_acts(self) -> None:
        while True:
            await self._acting.wait()
            self._acting.clear()
            while self._acts and self.greeted:
                try:
                    await self._bus.publish(subjects.acts(self._me.agent), self._acts[0])
                except BusLost:
                    break  # they wait
                except TooLong:
                    self._dropped["too_long"] += 1
                self._acts.popleft()

    async def _send_records(self) -> None:
        while True:
            await self._wants.some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER):
                    await self._wants.urgent.wait()
            self._wants.some.clear()
            self._wants.urgent.clear()
            if self.greeted:
                await self._send_batches()
                self._held = self._spool.under_way >= self._window

    async def _send_batches(self) -> None:
        for batch in self._spool.batches(self._window):
            try:
                await self._bus.publish(subjects.records(self._me.agent), encode(batch))
            except TooLong as error:
                self._skip(batch, error)
            except BusLost:
                return  # it stays in the spool; the next who greets us gets it

    def _skip(self, batch: Batch, error: TooLong) -> None:
        _log.error("records of rank %s are lost: %s", batch.head.rank, error)
        self._dropped["too_long"] += len(batch.records)
        self._spool.stored(batch.head, batch.first + len(batch.records) - 1)

    async def _handle(self, subject: str, data: bytes, reply: str) -> None:
        message = self._reader.read(data)
        if message is None or not self._is_of_the_newest(message):
            return
        if isinstance(message, Stored):
            self._answered_at = time.monotonic()
            self._spool.stored(message.head, message.upto)
            if self._held:
                self.more(urgent=True)
        elif isinstance(message, Greeting):
            self._lose()  # a weaver that does not know us asks who we are
        else:
            self._on_down(message)

    def _is_of_the_newest(self, message: Message) -> bool:
        """Tell whether the newest weaver says this; one that is newer still is to be greeted."""
        epoch: int = getattr(message, "epoch", 0)
        if epoch < self.epoch and (epoch or isinstance(message, _OF_AN_EPOCH)):
            self._dropped["old_epoch"] += 1
            return False
        if epoch > self.epoch:
            self.epoch = epoch
            self._lose()
        return True
