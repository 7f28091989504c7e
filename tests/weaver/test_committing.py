"""Ranks, an agent, NATS and a weaver as processes: what is on the disk is whole, whoever dies."""

import asyncio
import contextlib
import fcntl
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from torchloom.bus.nats.client import NatsBus
from torchloom.messages.plane import Stored

from ..harness.async_wait import come_true
from ..harness.fake_agents import FakeAgent, job_event, rows
from ..harness.nats_server import NatsServer
from ..launch.node_agent.node import Node
from .api.test_doors import Caller
from .test_main import WeaverProcess

pytestmark = pytest.mark.process
JOB = "saving-1"
RANK = Path(__file__).parent.parent / "launch" / "node_agent" / "saving_rank.py"


class Stage:
    """Two ranks that save when a file says so, their agent, and a weaver that is killed."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        self.server = server
        self.root = folder / "runs" / JOB / "checkpoints"
        self.root.mkdir(parents=True)
        self.asked = folder / "asked"
        self.asked.mkdir()
        self.weaver = WeaverProcess(folder / "plane", server)
        self.node = Node(folder / "node", server.url)
        self._ranks: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.weaver.start()
        self.node.start_agent()

    def start_ranks(self, *numbers: int) -> None:
        for rank in numbers:
            words = [str(self.node.socket), JOB, str(rank), "2", str(self.root), str(self.asked)]
            env = {**os.environ, "LOOM_JOB": JOB}
            command = [sys.executable, str(RANK), *words]
            self._ranks.append(subprocess.Popen(command, env=env))

    async def launch(self) -> None:
        """Say what a launch process says of its job."""
        bus = await NatsBus.connect(self.server.url)
        launcher = FakeAgent(bus, "launcher")
        await launcher.start()
        told = job_event("job", JOB, launched=True, checkpoints=str(self.root))
        while not launcher.of(Stored):  # the weaver may not have reached the bus yet
            await launcher.send(told.head, 1, told)
            await asyncio.sleep(0.1)
        await bus.close()

    def save(self, step: int) -> None:
        (self.asked / f"save-{step}").touch()

    async def is_committed(self, step: int) -> None:
        """Come back when the folder is there by its final name."""
        await come_true((self.root / f"ckpt_step_{step:05d}").is_dir)

    def states(self) -> dict[int, str]:
        with contextlib.suppress(Exception):  # a weaver may be making the database
            return dict(rows(self.weaver.home / "plane", "SELECT step, state FROM checkpoints"))
        return {}

    def end(self) -> None:
        (self.asked / "enough").touch()
        for process in self._ranks:
            process.kill()
            process.wait()
        self.node.end()
        self.weaver.end()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    for name in ("plane", "node"):
        (tmp_path / name).mkdir()
    server = NatsServer(tmp_path / "nats")
    server.start()
    stage = Stage(tmp_path, server)
    stage.start()
    yield stage
    stage.end()
    server.stop()


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep whoever commits or removes waiting."""
    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_open(path: Path, pid: int) -> bool:
    """Tell whether a process has a file open."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) == str(path):
                return True
    return False


def read(place: Path) -> dict[str, Any]:
    """Return a manifest, read with json alone, after its shards were hashed by hand."""
    manifest: dict[str, Any] = json.loads((place / "manifest.json").read_text())
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    files.pop("manifest.json")
    assert {shard["name"]: shard["hash"] for shard in manifest["shards"]} == {
        name: f"blake3:{blake3(data).hexdigest()}" for name, data in files.items()
    }
    assert {shard["name"]: shard["size"] for shard in manifest["shards"]} == {
        name: len(data) for name, data in files.items()
    }
    return manifest


def test_shards_on_either_side_of_a_killed_weaver_are_one_checkpoint(stage: Stage) -> None:
    async def story() -> Any:
        await stage.weaver.answers()
        await stage.launch()
        stage.start_ranks(0)
        stage.save(100)
        await come_true(lambda: stage.states() == {100: "writing"})

        stage.weaver.end()
        stage.start_ranks(1)
        await come_true((stage.root / "ckpt_step_00100.g0-0" / "worker_1.pt").exists)
        assert not (stage.root / "ckpt_step_00100").exists()
        stage.weaver.start()
        await stage.is_committed(100)

        await come_true(lambda: stage.states() == {100: "committed"})
        async with Caller(stage.weaver.door) as caller:
            return await caller.ask("checkpoints", job=JOB)

    (listed,) = asyncio.run(story())

    place = stage.root / "ckpt_step_00100"
    manifest = read(place)
    assert (manifest["job_id"], manifest["step"], manifest["world_size"]) == (JOB, 100, 2)
    assert manifest["metrics"] == {"loss": 0.01}
    assert (listed["place"], listed["state"], listed["step"]) == (str(place), "committed", 100)
    assert listed["bytes"] == sum(path.stat().st_size for path in place.glob("worker_*.pt"))
    assert [path.name for path in stage.root.glob("*.g*")] == []


def test_an_answer_to_a_killed_weaver_is_given_to_the_next_one(stage: Stage) -> None:
    async def story() -> None:
        await stage.weaver.answers()
        await stage.launch()
        with locked(stage.root):  # the agent waits here before it renames
            stage.start_ranks(0, 1)
            stage.save(100)
            await come_true(lambda: is_open(stage.root / ".lock", stage.node.agent_pid))
            stage.weaver.end()
        await stage.is_committed(100)
        assert stage.states() == {100: "committing"}

        stage.weaver.start()
        await come_true(lambda: stage.states() == {100: "committed"})

    asyncio.run(story())

    assert read(stage.root / "ckpt_step_00100")["step"] == 100


def test_weavers_killed_at_any_moment_of_a_commit_lose_none_and_say_each_once(
    stage: Stage,
) -> None:
    steps = range(100, 900, 100)
    dice = random.Random(7)

    async def story() -> None:
        await stage.weaver.answers()
        await stage.launch()
        stage.start_ranks(0, 1)
        for step in steps:
            stage.save(step)
            await asyncio.sleep(dice.uniform(0.0, 0.4))  # anywhere between word and answer
            stage.weaver.end()
            stage.weaver.start()
            await stage.weaver.answers()
        for step in steps:
            await stage.is_committed(step)
        await come_true(lambda: set(stage.states().values()) == {"committed"})

    asyncio.run(story())

    assert [read(stage.root / f"ckpt_step_{step:05d}")["step"] for step in steps] == list(steps)
    assert stage.states() == dict.fromkeys(steps, "committed")
    query = "SELECT step FROM events WHERE kind = 'checkpoint_committed' ORDER BY step"
    assert rows(stage.weaver.home / "plane", query) == [(step,) for step in steps]
