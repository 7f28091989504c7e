"""A job that is recovered live, as its weaver sees it: ranks and a launch process that answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec

from torchloom.bus.api import BusLost
from torchloom.bus.codec import decode
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.messages.membership import (
    Arrived,
    EndProcess,
    Finished,
    Fork,
    Go,
    JoinGeneration,
    MakeStore,
    ProcessReport,
    ProcessReports,
    Release,
    Restart,
    Restored,
    ToLaunch,
    Training,
    Transfer,
    Watch,
)
from torchloom.messages.plane import NO_RANK, VERSION, Greeting, Head, Message, Register, ToAgent
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import DatabasePlace, open_store

from ...harness.fake_agents import FakeAgent, FakeRank, job_event, register, until
from ...harness.fresh_databases import fresh

JOB = "job-1"
NODE = "node1"
PAGES = (6, 7, 8)
POLICY = {"recovery": "live"}


class Member(FakeRank):
    """A rank that does as it is told in a recovery, but for what it is to keep silent about."""

    def __init__(self, agent: "LiveAgent", said: Register) -> None:
        super().__init__(agent, said)
        self.applied_steps: int | None = 9
        self.silent: set[type[Message]] = set()
        self.heard: list[Message] = []
        self.why = ""

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def hear(self, message: Message) -> None:
        self.heard.append(message)
        if type(message) in self.silent:
            return
        match message:
            case JoinGeneration():
                await self.arrive(message.head.generation)
            case Transfer():
                await self.joins(message.head.generation)
                await self.agent.act(Restored(self.head))
            case Go():
                self.applied_steps = message.start
                await self.trains(message.start)
            case _:
                await super().hear(message)

    async def joins(self, generation: int) -> None:
        """Say that it belongs to another generation from now on."""
        self.head = msgspec.structs.replace(self.head, generation=generation)
        self.register = msgspec.structs.replace(self.register, head=self.head)
        await self.agent.act(self.register)

    async def arrive(self, generation: int) -> None:
        head = msgspec.structs.replace(self.head, generation=generation)
        await self.agent.act(Arrived(head, self.applied_steps, PAGES, self.why))

    async def trains(self, step: int = 0, why: str = "") -> None:
        await self.agent.act(Training(self.head, step, why))

    async def finishes(self, step: int = 20) -> None:
        await self.agent.act(Finished(self.head, step))


class Launch:
    """The process that launches a job: it starts newcomers and says which processes there were."""

    def __init__(self, agent: "LiveAgent", count: int, job: str = JOB) -> None:
        self.agent = agent
        self.head = Head(VERSION, job, 0, NO_RANK, "launch", "trainer")
        self.attempt = 0
        self.lives = [ProcessReport(rank, 1, NODE) for rank in range(count)]
        self.count = count
        self.heard: list[Message] = []
        self.silent: set[type[Message]] = set()
        self.store = ("", -1)
        self.lost: tuple[str, ...] = ()
        self.dies: set[tuple[int, int]] = set()  # newcomers that end before they say anything
        self.fails: set[tuple[int, int]] = set()  # those that cannot be started
        self.newcomers: dict[tuple[int, int], Member] = {}
        self.why = ""  # newcomers cannot go on

    @property
    def register(self) -> Register:
        found = register(0, job=self.head.job, boundary="none", knobs=())
        return msgspec.structs.replace(found, head=self.head, attempt=self.attempt, devices=())

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def says(self, **changes: Any) -> None:
        """Say which processes there were."""
        room = {NODE: self.count}
        said = ProcessReports(
            self.head, self.attempt, tuple(self.lives), room, self.lost, *self.store
        )
        await self.agent.act(msgspec.structs.replace(said, **changes))

    def ends(self, rank: int, code: int = -9, step: int = 9) -> None:
        """Have the present process of a rank end; nobody is told yet."""
        last = max(i for i, life in enumerate(self.lives) if life.rank == rank)
        self.lives[last] = msgspec.structs.replace(self.lives[last], code=code, step=step)

    async def kill(self, *ranks: int, code: int = -9) -> None:
        for rank in ranks:
            self.ends(rank, code)
        await self.says()

    async def hear(self, message: Message) -> None:
        self.heard.append(message)
        if type(message) in self.silent:
            return
        match message:
            case Fork():
                await self.fork(message)
            case MakeStore():
                generation = message.head.generation
                self.store = (f"file:///dev/shm/{generation}", generation)
            case EndProcess():
                if (message.rank, message.life) in [(one.rank, one.life) for one in self.lives]:
                    self.ends(message.rank)
            case Restart():
                return
        await self.says()

    async def fork(self, order: Fork) -> None:
        who = (order.rank, order.life)
        if who in [(one.rank, one.life) for one in self.lives]:
            return
        if who in self.fails:
            self.lives.append(ProcessReport(*who, order.node, code=1, why="no room"))
            return
        self.lives.append(ProcessReport(*who, order.node))
        if who in self.dies:
            self.ends(order.rank, code=1, step=-1)
            return
        generation = order.head.generation
        said = register(
            order.rank,
            job=self.head.job,
            generation=generation,
            incarnation=f"{self.head.job}-{order.rank}-life-{order.life}",
            world=self.count,
            attempt=self.attempt,
            rank_life=order.life,
        )
        newcomer = Member(self.agent, said)
        newcomer.applied_steps = None
        newcomer.silent |= self.silent
        newcomer.why = self.why
        newcomer.store, newcomer.step = self.agent.shared, self.agent.members[order.rank].step
        self.newcomers[who] = self.agent.members[order.rank] = newcomer
        self.agent.ranks[said.head.incarnation] = newcomer
        await self.agent.act(said)
        await newcomer.arrive(generation)


class LiveAgent(FakeAgent):
    """The agent of a job's only node, with its ranks and its launch process."""

    @property
    def players(self) -> list[Any]:
        return [self.launch, *self.members.values()]

    def __init__(self, exchange: Exchange, count: int = 3, job: str = JOB) -> None:
        super().__init__(MemoryBus(exchange))
        self.launch = Launch(self, count, job)
        self.shared: dict[str, int | None] = {}
        self.members: dict[int, Member] = {}
        for rank in range(count):
            member = Member(self, register(rank, job=job, world=count))
            member.store = self.shared
            self.members[rank] = self.ranks[member.head.incarnation] = member

    async def start(self) -> None:
        await super().start()
        self.living = asyncio.create_task(self._live())

    async def _live(self) -> None:
        """Beat, or a slow machine's weaver takes this agent for lost."""
        while True:
            with contextlib.suppress(BusLost):
                await self.beat()
            await asyncio.sleep(0.2)

    async def hello(self) -> Greeting:
        self.ranks["launch"] = FakeRank(self, self.launch.register)
        return await super().hello()

    async def _down(self, subject: str, data: bytes, reply: str) -> None:
        message = decode(data, ToAgent)
        if isinstance(message, ToLaunch):
            self.heard.append(message)
            await self.launch.hear(message)
        else:
            await super()._down(subject, data, reply)


async def begun(exchange: Exchange, count: int = 3, job: str = JOB, **facts: object) -> LiveAgent:
    """Return a node whose ranks are there and do not train yet."""
    agent = LiveAgent(exchange, count, job)
    await agent.start()
    await agent.hello()
    await agent.act(job_event("job", job, name=job, **{"policy": POLICY, **facts}))
    return agent


async def trained(exchange: Exchange, weaver: Weaver, count: int = 3, job: str = JOB) -> LiveAgent:
    """Return it when all ranks train and the job is watched."""
    agent = await begun(exchange, count, job)
    await agent.launch.says()
    for member in agent.members.values():
        await member.trains()
    await until(lambda: job in weaver.live_recovery.watched())
    await until(lambda: agent.launch.of(Watch))
    return agent


async def recovered(agent: LiveAgent, weaver: Weaver, generation: int) -> None:
    """Come back when all members train in a generation."""
    job = agent.launch.head.job
    members = agent.members.values()
    await until(lambda: all(member.head.generation == generation for member in members))
    await until(lambda: all(member.of(Go) for member in members if member.register.life > 1))
    await until(lambda: weaver.jobs.get(job).state == "RUNNING")
    await until(lambda: not weaver.live_attempts.is_recovering(job))


@contextlib.asynccontextmanager
async def timeless(where: Path | DatabasePlace, exchange: Exchange) -> AsyncIterator[Weaver]:
    """Run a weaver for which no time passes: it does what it is told, at once, or never."""
    store = open_store(where if isinstance(where, DatabasePlace) else fresh(where))
    bus = MemoryBus(exchange)
    weaver = Weaver(store, bus)
    await weaver.start()
    try:
        yield weaver
    finally:
        await weaver.stop()
        await bus.close()
        store.close()


def events(weaver: Weaver, *kinds: str, job: str = JOB) -> list[tuple[Any, ...]]:
    """Return what happened of these kinds: its kind, rank and reason."""
    found = weaver.store.state.happened(job)
    return [(one.kind, one.rank, one.reason) for one in found if one.kind in kinds]


def facts(weaver: Weaver, kind: str, job: str = JOB) -> list[dict[str, Any]]:
    return [one.facts for one in weaver.store.state.happened(job) if one.kind == kind]


def orders(heard: Iterable[Message]) -> list[str]:
    """Return what was said, each thing once, by the names of the messages."""
    return list(dict.fromkeys(type(message).__name__ for message in heard))


__all__ = ["Release", "begun", "events", "facts", "orders", "recovered", "timeless", "trained"]
