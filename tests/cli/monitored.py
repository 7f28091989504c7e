"""A plane to watch: a real weaver at a real door, with ranks that are made of messages."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.client import plane
from torchloom.messages.plane import Knob, Metrics, Progress
from torchloom.weaver.service import Weaver

from ..harness.fake_agents import LR, FakeAgent, FakeRank, job_event, register, rows, weaver_at

T = TypeVar("T")
PATIENCE = 30.0
KNOBS = (LR, Knob("temperature", 0.7, "float"))


class Plane:
    """Runs in a thread of its own, so that whoever asks may block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exchange = Exchange()
        self.ranks: dict[str, list[FakeRank]] = {}
        self._stack = contextlib.AsyncExitStack()
        self._records: dict[str, int] = {}
        self._seconds: dict[str, float] = {}  # of a step, for jobs that have begun
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._living = asyncio.run_coroutine_threadsafe(self._live(), self._loop)

    def up(self) -> None:
        """Have a weaver answer at the door."""
        plane.made_folder()
        self.do(self._up())

    def down(self) -> None:
        """End the weaver; its databases stay."""
        self.do(self._stack.aclose())

    def job(self, name: str, ranks: int = 2, knobs: tuple[Knob, ...] = KNOBS) -> None:
        """Have a job whose ranks have told of themselves."""
        self.do(self._job(name, ranks, knobs))

    def steps(self, name: str, *steps: int, seconds: float = 0.0125) -> None:
        """Have each rank of a job be in a step."""
        for rank, step in zip(self.ranks[name], steps, strict=True):
            rank.step = step
        self._seconds[name] = seconds
        self.do(self._beat(name))

    def log(self, name: str, metric: str, *values: float, rank: int = 0) -> None:
        """Have a rank tell a curve, and wait until it is stored."""
        head = self.ranks[name][rank].head
        first = self._records.get(head.incarnation, 0) + 1
        points = tuple((n, time.time(), value) for n, value in enumerate(values))
        agent = self.ranks[name][rank].agent
        self.do(agent.send(head, first, Metrics(head, (metric,), points), follows=first - 1))
        self.do(agent.stored(head, first))
        self._records[head.incarnation] = first

    def end(self, name: str, state: str, reason: str) -> None:
        """Have a job end."""
        event = job_event("job_ended", name, state=state, reason=reason)
        self.do(self.ranks[name][0].agent.act(event))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read the weaver's database without the weaver."""
        return rows(self.folder, query)

    def commands(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT job, kind, state FROM commands ORDER BY number")

    def do(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(PATIENCE)

    def close(self) -> None:
        self.down()
        self.do(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        """End the ears of the agents."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _beat(self, name: str) -> None:
        ranks, seconds = self.ranks[name], self._seconds.get(name)
        known = ranks if seconds else []
        beats = [Progress(rank.head, rank.step, 1, 0.01, seconds or 0.0) for rank in known]
        await ranks[0].agent.beat(*beats)

    async def _live(self) -> None:
        """Have every agent say now and then that it lives, however slow the test is."""
        while True:
            await asyncio.sleep(1.0)
            for name in list(self.ranks):
                await self._beat(name)

    async def _up(self) -> None:
        await self._stack.enter_async_context(self._weaver())

    @contextlib.asynccontextmanager
    async def _weaver(self) -> AsyncIterator[Weaver]:
        async with weaver_at(self.folder, self.exchange, plane.door()) as weaver:
            yield weaver

    async def _job(self, name: str, ranks: int, knobs: tuple[Knob, ...]) -> None:
        agent = FakeAgent(MemoryBus(self.exchange), f"agent-{name}")
        await agent.start()
        registers = [register(n, job=name, world=ranks, knobs=knobs) for n in range(ranks)]
        self.ranks[name] = [agent.rank(each) for each in registers]
        shared: dict[str, int | None] = {}
        for rank in self.ranks[name]:
            rank.store = shared
        await agent.act(job_event("job", name, name=name.partition("-")[0]))
        await agent.hello()


@contextlib.contextmanager
def plane_in(folder: Path) -> Iterator[Plane]:
    """Run a plane for a while."""
    plane = Plane(folder)
    plane.up()
    try:
        yield plane
    finally:
        plane.close()
