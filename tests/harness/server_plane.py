"""A plane of real processes for tests of its HTTP door: NATS, a weaver, servers, and ranks."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from torchloom.bus.api import BusLost, NoReply
from torchloom.bus.nats.client import NatsBus
from torchloom.messages.plane import Progress

from .fake_agents import FakeAgent, job_event, register
from .fresh_databases import fresh
from .home import TIMEOUT, until
from .nats_server import NatsServer

PATIENCE = 120.0  # seconds; generous, for loaded machines


class Process:
    """One of the plane's programs, with its words in a file."""

    def __init__(self, name: str, words: list[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-P", "-m", f"torchloom.{name}", *words]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=dict(env))
        self.pid = self._process.pid

    def end(self, signum: int = signal.SIGKILL) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signum)
        return self._process.wait(TIMEOUT)

    def lives(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        return True


class Server:
    """An HTTP server: where it answers, and a caller who has the admin's token."""

    def __init__(self, plane: "Plane", runtime: Path, words: list[str]) -> None:
        self.plane, self.card = plane, runtime / "server.json"
        given = ["--port", "0", "--home", str(plane.home), "--runtime", str(runtime), *words]
        self.process = Process("server", given, plane.env, plane.folder / "server.log")
        self._wait()

    def _wait(self) -> None:
        def is_there() -> bool:
            self.process.lives()
            with contextlib.suppress(OSError, ValueError):
                self.facts: dict[str, Any] = httpx.Response(
                    200, content=self.card.read_bytes()
                ).json()
                return bool(self.facts["pid"] == self.process.pid)
            return False

        until(is_there, PATIENCE)
        self.url = str(self.facts["url"])

    def client(self, token: str | None = None, **words: Any) -> httpx.Client:
        """Return a caller with a token; the admin's where none is named, none for an empty one."""
        token = self.plane.token() if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, **words)


class Plane:
    """Processes in folders of their own; whatever was started is ended."""

    def __init__(self, folder: Path, database: str = "") -> None:
        self.folder, self.home = folder, folder / "home"
        name = f"plane-{zlib.crc32(os.fsencode(self.home)):08x}"  # where runs look for it, too
        self.runtime = folder / "run" / "torchloom" / name
        self.runtime.mkdir(mode=0o700, parents=True)
        self.nats = NatsServer(folder / "nats")
        self.nats.start()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        self.env |= {"LOOM_HOME": str(self.home), "XDG_RUNTIME_DIR": str(folder / "run")}
        self.env |= {"LOOM_PLANE": "0", "LOOM_WARM": "0"}  # runs are to leave nothing behind
        self.env |= {"LOOM_DASHBOARD": "none"}  # whether one is built here or not
        self.env |= {"LOOM_DATABASE": database} if database else {}
        if not database:
            fresh(self.home / "plane")
        self.servers: list[Server] = []
        self._others: list[Process] = []
        try:
            self.start_weaver()
        except BaseException:
            self.close()
            raise

    def start_weaver(self) -> None:
        words = ["--nats", self.nats.url, "--home", str(self.home), "--runtime", str(self.runtime)]
        self.weaver = Process("weaver", words, self.env, self.folder / "weaver.log")

        def answers() -> bool:
            self.weaver.lives()
            with contextlib.suppress(OSError):
                asyncio.run(self.ask("status"))
                return True
            return False

        until(answers, PATIENCE)

    async def ask(self, name: str, **facts: Any) -> Any:
        """Ask the weaver past the server."""
        from torchloom.server.weaver_link import WeaverAway, WeaverLink

        link = WeaverLink(self.runtime / "weaver.sock")
        try:
            return await link.ask(name, **facts)
        except WeaverAway as error:
            raise OSError(str(error)) from error
        finally:
            link.close()

    def start_server(self, *words: str) -> Server:
        """Start a server; every further one has a folder of its own, and the same weaver."""
        runtime = self.runtime
        if self.servers:
            runtime = self.folder / f"run{len(self.servers)}"
            runtime.mkdir(mode=0o700)
            words = ("--door", str(self.runtime / "weaver.sock"), *words)
        self.servers.append(Server(self, runtime, list(words)))
        return self.servers[-1]

    def start_agent(self) -> None:
        """Have this machine be a node, so that jobs can run."""
        words = ["--nats", self.nats.url, "--home", str(self.home), "--runtime", str(self.runtime)]
        log = self.folder / "agent.log"
        self._others.append(Process("launch.relay", words, self.env, log))
        until(lambda: asyncio.run(self.ask("cluster"))["nodes"], PATIENCE)

    def token(self) -> str:
        return (self.home / "plane" / "admin.token").read_text().strip()

    def close(self) -> None:
        servers = [server.process for server in self.servers]
        for process in (*servers, *self._others, self.weaver):
            process.end()
        self.nats.stop()


class Ranks:
    """A job of two ranks that a node's agent tells of, until it is left."""

    def __init__(self, plane: Plane, job: str = "job-1", name: str = "gpt") -> None:
        self._plane, self._job, self._name = plane, job, name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))
        self._over = asyncio.Event()
        self._there = threading.Event()
        self.agent: FakeAgent

    def __enter__(self) -> "Ranks":
        self._thread.start()
        assert self._there.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _live(self) -> None:
        bus = await NatsBus.connect(self._plane.nats.url)
        agent = self.agent = FakeAgent(bus)
        await agent.start()
        shared: dict[str, int | None] = {}
        for number in range(2):
            agent.rank(register(number, job=self._job, world=2)).store = shared
        await self._introduce(agent)
        while not self._over.is_set():
            heads = [rank.head for rank in agent.ranks.values()]
            with contextlib.suppress(BusLost, NoReply):
                await agent.beat(*(Progress(head, 10, 1, 0.1, 0.01) for head in heads))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), 0.2)
        await bus.close()

    async def _introduce(self, agent: FakeAgent) -> None:
        facts = {"name": self._name, "scheduler": "local", "handle": f"local://x/{self._job}"}
        await agent.act(job_event("job", self._job, owner="ada", **facts))
        while not agent.epoch:
            with contextlib.suppress(NoReply):
                await agent.hello()
        self._there.set()


@contextlib.contextmanager
def running(folder: Path, database: str = "") -> Iterator[Plane]:
    """Give a plane with a weaver; the caller starts servers."""
    plane = Plane(folder, database)
    try:
        yield plane
    finally:
        plane.close()
