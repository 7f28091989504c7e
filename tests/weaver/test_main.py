"""The weaver as a process, over a real NATS: killed at any instant, the next one goes on."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from torchloom.bus.api import BusLost, NoReply
from torchloom.bus.nats.client import NatsBus
from torchloom.messages.plane import Event, Greeting, Message, Metrics, Stored

from ..harness.fake_agents import FakeAgent, FakeRank, register, rows, until
from ..harness.home import TIMEOUT
from ..harness.metric_rows import in_file
from ..harness.nats_server import NatsServer
from .api.test_doors import Caller

pytestmark = pytest.mark.process


class WeaverProcess:
    """`python -m torchloom.weaver` with folders of its own."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        self.server = server
        self.home = folder / "home"
        self.runtime = folder / "run"
        self.runtime.mkdir(mode=0o700)
        self.door = self.runtime / "weaver.sock"
        self.log = folder / "weaver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-P", "-m", "torchloom.weaver", "--nats", self.server.url]
        words += ["--home", str(self.home), "--runtime", str(self.runtime)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=env)

    def end(self, signum: int = signal.SIGKILL) -> int:
        assert self._process is not None
        self._process.send_signal(signum)
        return self._process.wait(TIMEOUT)

    def signal(self, signum: int) -> None:
        assert self._process is not None
        self._process.send_signal(signum)

    async def answers(self) -> None:
        async def asked() -> bool:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with Caller(self.door) as caller:
                    await caller.ask("status")
                    return True
            return False

        deadline = asyncio.get_running_loop().time() + TIMEOUT
        while not await asked():
            assert asyncio.get_running_loop().time() < deadline, self.log.read_text()
            await asyncio.sleep(0.01)


@pytest.fixture
def weaver(tmp_path: Path) -> Iterator[WeaverProcess]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    process = WeaverProcess(tmp_path, server)
    process.start()
    yield process
    process.end()
    server.stop()


class KeepingAgent(FakeAgent):
    """An agent that forgets a record only when the weaver says that it is stored."""

    def __init__(self, bus: NatsBus) -> None:
        super().__init__(bus)
        self.records: dict[str, list[Message]] = {}

    def upto(self, life: str) -> int:
        return max((s.upto for s in self.of(Stored) if s.head.incarnation == life), default=0)

    async def flush(self) -> None:
        """Send all that is not known to be stored, as an agent does after a greeting."""
        for rank in list(self.ranks.values()):
            life = rank.head.incarnation
            waiting = self.records[life][self.upto(life) :]
            first = self.upto(life) + 1
            for start in range(0, len(waiting), 5):
                follows = first + start - 1 if start else 0
                batch = waiting[start : start + 5]
                await self.send(rank.head, first + start, *batch, follows=follows)

    async def work(self, steps: int) -> None:
        """Let the ranks train: each step is a point, and now and then an event."""
        for step in range(1, steps + 1):
            for rank in self.ranks.values():
                rank.step = step
                value = step * 10.0 + rank.head.rank
                records = self.records[rank.head.incarnation]
                records.append(Metrics(rank.head, ("loss",), ((step, float(step), value),)))
                if step % 7 == 0:
                    records.append(Event(rank.head, "seven", step, float(step)))
            with contextlib.suppress(BusLost):
                await self.flush()
            await asyncio.sleep(0.01)

    async def introduce(self) -> None:
        """Say hello until somebody answers."""
        while not self.epoch:
            with contextlib.suppress(NoReply):
                await self.hello()
            await asyncio.sleep(0.02)

    async def all_stored(self) -> None:
        """Wait until the weaver has said so of everything."""
        await until(lambda: all(self.upto(life) == len(r) for life, r in self.records.items()))

    async def stay(self) -> None:
        """Beat, and send again what had no answer."""
        while True:
            with contextlib.suppress(BusLost, NoReply):
                await self.beat()
                await self.flush()
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def two_ranks(weaver: WeaverProcess) -> AsyncIterator[KeepingAgent]:
    """Have an agent with two ranks that the weaver knows, until the end."""
    bus = await NatsBus.connect(weaver.server.url)
    agent = KeepingAgent(bus)
    await agent.start()
    shared: dict[str, int | None] = {}
    for number in range(2):
        rank = agent.rank(register(number, world=2))
        rank.store = shared
        agent.records[rank.head.incarnation] = []
    await agent.introduce()
    staying = asyncio.create_task(agent.stay())
    try:
        yield agent
    finally:
        staying.cancel()
        await bus.close()


def assert_whole(home: Path, steps: int) -> None:
    """Compare what the ranks did with what is stored, point by point."""
    for rank in range(2):
        assert points(home, rank) == [(s, s * 10.0 + rank) for s in range(1, steps + 1)]
        query = f"SELECT step FROM events WHERE kind = 'seven' AND rank = {rank} ORDER BY id"
        sevens = [(step,) for step in range(7, steps + 1, 7)]
        assert rows(home / "plane", query, "records") == sevens


def points(home: Path, rank: int) -> list[tuple[int, float]]:
    found = in_file(home / "plane" / "records.db")
    its = {step: point.value for (_, _, of, _, step), point in found.items() if of == rank}
    return sorted(its.items())


def test_a_weaver_killed_again_and_again_loses_nothing_and_does_nothing_twice(
    weaver: WeaverProcess,
) -> None:
    """What the ranks did and wrote is compared with the database, read by sqlite3."""
    steps, kills, draw = 150, 3, random.Random(11)

    async def keep_killing() -> None:
        for _ in range(kills):
            await asyncio.sleep(draw.uniform(0.1, 0.6))
            weaver.end()
            weaver.start()
            await weaver.answers()

    async def keep_changing(done: dict[str, float]) -> None:
        """Ask until each change has an answer; the same id twice is one change."""
        for number in range(12):
            name, value = f"c{number}", number / 100
            while name not in done:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    async with Caller(weaver.door) as caller:
                        facts = {"job": "job-1", "values": {"lr": value}, "id": name}
                        answer = await caller.ask("set", **facts)
                        if answer.get("state") == "applied":
                            done[name] = value
                await asyncio.sleep(0.02)

    async def scenario() -> list[FakeRank]:
        async with two_ranks(weaver) as agent:
            done: dict[str, float] = {}
            await asyncio.gather(agent.work(steps), keep_killing(), keep_changing(done))
            await agent.all_stored()
            assert agent.of(Greeting)
            return list(agent.ranks.values())

    ranks = asyncio.run(scenario())

    home = weaver.home
    assert_whole(home, steps)
    assert ranks[0].applied == ranks[1].applied
    assert [value for _, _, value in ranks[0].applied] == [n / 100 for n in range(12)]
    audit = rows(home / "plane", "SELECT id, state, effective FROM commands ORDER BY number")
    acted = {name.partition("/")[0]: step for name, step, _ in ranks[0].applied}
    assert audit == [(f"c{n}", "applied", acted[f"c{n}"]) for n in range(12)]
    epochs = rows(home / "plane", "SELECT epoch FROM epochs")
    assert epochs == [(n,) for n in range(1, kills + 2)]


def test_a_broker_that_is_killed_or_stands_still_makes_nobody_lost_and_loses_nothing(
    weaver: WeaverProcess,
) -> None:
    steps = 150

    async def bad_days() -> None:
        for _ in range(2):
            await asyncio.sleep(0.3)
            weaver.server.stop()
            await asyncio.sleep(0.5)
            weaver.server.start()
        await asyncio.sleep(0.5)
        weaver.server.pause()
        await asyncio.sleep(4.0)  # longer than an agent may be silent
        weaver.server.go_on()

    async def scenario() -> None:
        async with two_ranks(weaver) as agent:
            await asyncio.gather(agent.work(steps), bad_days())
            await agent.all_stored()

    asyncio.run(scenario())

    assert_whole(weaver.home, steps)
    assert rows(weaver.home / "plane", "SELECT DISTINCT state FROM ranks") == [("up",)]
    lost = "SELECT reason FROM events WHERE kind = 'agent_lost'"
    assert rows(weaver.home / "plane", lost) == []


@pytest.mark.parametrize("seconds", [4.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_a_weaver_that_is_stopped_for_a_while_makes_nobody_lost(
    weaver: WeaverProcess, seconds: float
) -> None:
    async def scenario() -> None:
        async with two_ranks(weaver) as agent:
            assert weaver._process is not None
            weaver._process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)  # longer than an agent may be silent
            weaver._process.send_signal(signal.SIGCONT)
            await agent.work(50)
            await agent.all_stored()

    asyncio.run(scenario())

    lost = "SELECT reason FROM events WHERE kind = 'agent_lost'"
    assert rows(weaver.home / "plane", lost) == []


def test_a_weaver_leaves_in_order_when_told(weaver: WeaverProcess) -> None:
    asyncio.run(weaver.answers())

    code = weaver.end(signal.SIGTERM)

    assert (code, weaver.door.exists()) == (0, False)


def test_a_weaver_that_is_superseded_ends_itself(weaver: WeaverProcess) -> None:
    asyncio.run(weaver.answers())
    first = weaver._process
    weaver.door.unlink()
    weaver.start()
    asyncio.run(weaver.answers())

    assert first is not None
    assert first.wait(TIMEOUT) == 1
    assert "one with epoch 2 is running" in weaver.log.read_text()
    asyncio.run(weaver.answers())


def test_a_database_that_is_none_is_said_in_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torchloom.weaver", "--home", str(tmp_path)]
    env = {**os.environ, "LOOM_DATABASE": "mysql://x", "XDG_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=TIMEOUT)

    assert done.returncode == 2
    assert done.stderr.startswith("weaver: LOOM_DATABASE begins with 'mysql'")
    assert len(done.stderr.splitlines()) == 1
