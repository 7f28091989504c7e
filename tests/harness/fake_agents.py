"""Agents and ranks as a weaver sees them, made of the bus alone."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from torchloom.bus import subjects
from torchloom.bus.api import Bus
from torchloom.bus.codec import decode, encode
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.messages import plane
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Applied,
    Batch,
    Decided,
    Device,
    Event,
    Goodbye,
    Greeting,
    Head,
    Heartbeat,
    Hello,
    Knob,
    Message,
    Outcome,
    Prepare,
    Progress,
    RankRefusal,
    Ready,
    Register,
    Stored,
    ToAgent,
    Write,
)
from torchloom.weaver.api.router import BusDoor, Door, Router
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import DatabasePlace, open_store

from .fresh_databases import fresh

M = TypeVar("M", bound=Message)
LR = Knob("lr", 0.1, "float", 0.0, 1.0)
PATIENCE = 60.0  # seconds; generous, for loaded machines
ANSWER = 10.0  # seconds after which somebody asks again


class FakeRank:
    """A rank that counts steps when it is told to and keeps its promises."""

    def __init__(self, agent: "FakeAgent", register: Register) -> None:
        self.agent = agent
        self.register = register
        self.head = register.head
        self.step = 0
        self.store: dict[str, int | None] = {}  # shared by the ranks of a generation
        self.applied: list[tuple[str, int, Any]] = []
        self.prepared: dict[str, Prepare] = {}
        self.refuses = ""
        self.is_deaf: Callable[[Message], bool] = lambda message: False

    async def hear(self, message: Message) -> None:
        if self.is_deaf(message):
            return
        match message:
            case Prepare() if self.refuses:
                await self.agent.act(RankRefusal(self.head, message.command, self.refuses))
            case Prepare():
                self.prepared[message.command] = message
                await self.agent.act(Ready(self.head, message.command, self.step, 1))
            case Write():
                won = self.store.setdefault(message.command, message.effective)
                await self.agent.act(Decided(self.head, message.command, won))
            case Outcome() if message.effective is not None:
                await self._apply(message.command, message.effective)
                if self.prepared[message.command].kind == "stop":
                    await self.agent.act(Goodbye(self.head, message.effective))

    async def _apply(self, command: str, effective: int) -> None:
        known = self.prepared[command]
        if command not in (name for name, _, _ in self.applied):
            self.applied.append((command, effective, known.payload.get("value")))
        value = known.payload.get("value")
        await self.agent.act(Applied(self.head, command, effective, 0.1, value))


class FakeAgent:
    """A node's agent: it says hello when called, and passes on what its ranks say."""

    def __init__(self, bus: Bus, name: str = "node-1", host: str = "node1") -> None:
        self.bus = bus
        self.name = name
        self.host = host
        self.head = Head(VERSION, "", 0, NO_RANK, "")
        self.heard: list[Message] = []
        self.ranks: dict[str, FakeRank] = {}
        self.devices: tuple[Device, ...] = ()
        self.epoch = 0

    async def start(self) -> None:
        await self.bus.subscribe(subjects.down(self.name), self._down)

    def rank(self, register: Register) -> FakeRank:
        rank = FakeRank(self, register)
        self.ranks[register.head.incarnation] = rank
        return rank

    async def hello(self) -> Greeting:
        registers = tuple(rank.register for rank in self.ranks.values())
        said = Hello(
            self.head, self.name, self.host, "boot", 42, self.epoch, self.devices, registers
        )
        answer = await self.bus.request(subjects.hello(self.name), encode(said), ANSWER)
        greeting = decode(answer, Greeting)
        self.epoch = greeting.epoch
        return greeting

    async def beat(self, *progress: Progress) -> None:
        said = Heartbeat(self.head, self.name, time.time(), progress)
        await self.bus.publish(subjects.heartbeat(self.name), encode(said))

    async def act(self, message: Message) -> None:
        await self.bus.publish(subjects.acts(self.name), encode(message))

    async def send(self, head: Head, first: int, *records: Message, follows: int = 0) -> None:
        data = tuple(encode(record) for record in records)
        said = Batch(head, self.name, first, data, 0, follows)
        await self.bus.publish(subjects.records(self.name), encode(said))

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def stored(self, head: Head, upto: int) -> None:
        """Wait until the weaver says that so much is stored."""
        wanted = (head.incarnation, upto)
        await until(lambda: wanted in [(s.head.incarnation, s.upto) for s in self.of(Stored)])

    async def _down(self, subject: str, data: bytes, reply: str) -> None:
        message = decode(data, ToAgent)
        self.heard.append(message)
        if isinstance(message, Greeting):
            await self.hello()
            return
        rank = self.ranks.get(message.head.incarnation)
        if rank is not None:
            await rank.hear(message)


def register(
    rank: int = 0,
    *,
    job: str = "job-1",
    generation: int = 0,
    incarnation: str = "",
    role: str = "trainer",
    world: int = 1,
    devices: Iterable[str] = (),
    boundary: plane.Boundary = "api",
    knobs: tuple[Knob, ...] = (LR,),
    replica: str = "",
    attempt: int | None = None,
    rank_life: int = 1,
) -> Register:
    """Return how a rank introduces itself."""
    life = incarnation or f"{job}-{role}-{rank}-{generation}"
    head = Head(VERSION, job, generation, rank, life)
    uuids = tuple(devices) or (f"node1/cpu/{rank}",)
    return Register(
        head=head,
        role=role,
        local_rank=rank,
        node="node1",
        pid=1000 + rank,
        started=5,
        replica=replica or f"{role}/{rank}",
        devices=uuids,
        boundary=boundary,
        knobs=knobs,
        world_size=world,
        life=rank_life,
        attempt=generation if attempt is None else attempt,
    )


def job_event(kind: str, job: str = "job-1", **facts: Any) -> Event:
    return Event(Head(VERSION, job, 0, NO_RANK, "launcher"), kind, -1, time.time(), facts)


async def until(condition: Callable[[], object]) -> None:
    """Come back when the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def weaver_at(
    where: Path | DatabasePlace, exchange: Exchange, door: Path | None = None
) -> AsyncIterator[Weaver]:
    """Run a weaver over SQLite in a folder, or another place; leaving is a clean end."""
    store = open_store(where if isinstance(where, DatabasePlace) else fresh(where))
    bus = MemoryBus(exchange)
    weaver = Weaver(store, bus)
    answering = Router(weaver)
    over_bus = BusDoor(answering, bus)
    entrance = Door(answering, weaver.journal, door) if door else None
    await weaver.start()
    await over_bus.open()
    if entrance:
        await entrance.open()
    running = asyncio.create_task(weaver.run())
    try:
        yield weaver
    finally:
        if entrance:
            await entrance.close()
        await over_bus.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await weaver.stop()
        await bus.close()
        store.close()


async def crowd(exchange: Exchange, count: int, **words: Any) -> tuple[FakeAgent, list[FakeRank]]:
    """Return an agent with the ranks of one generation, which share a store."""
    agent = FakeAgent(MemoryBus(exchange))
    await agent.start()
    shared: dict[str, int | None] = {}
    ranks = [agent.rank(register(rank, world=count, **words)) for rank in range(count)]
    for rank in ranks:
        rank.store = shared
    return agent, ranks


def rows(folder: Path, query: str, database: str = "state") -> list[tuple[Any, ...]]:
    """Read a database by sqlite3 alone."""
    connection = sqlite3.connect(f"file:{folder / database}.db?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()
