"""Ranks that tell numbers over NATS until the weaver has them, and logs as a launch writes them."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from torchloom.bus.api import BusLost, NoReply
from torchloom.bus.nats.client import NatsBus
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.logs.files import LogFiles
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.messages.plane import Event, Message, Metrics, Stored
from torchloom.specs.api import AppState

from .fake_agents import FakeAgent, FakeRank, job_event, register
from .home import until
from .server_plane import PATIENCE, Plane

_AGAIN = 0.3  # seconds after which what was not answered is said again


class Teller:
    """The agent of a job's ranks, in a thread; nothing is forgotten before it is stored."""

    def __init__(
        self, plane: Plane, job: str, ranks: int = 2, name: str = "", generation: int = 0
    ) -> None:
        self.job, self._plane, self._name = job, plane, name or f"name-of-{job}"
        self._count, self._generation = ranks, generation
        self._records: dict[int, list[Message]] = {rank: [] for rank in range(ranks)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._agent: FakeAgent
        self._ranks: list[FakeRank] = []
        self._again: asyncio.Task[None]

    def __enter__(self) -> "Teller":
        self._thread.start()
        self._do(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def tell(self, rank: int, *steps: tuple[int, dict[str, float]]) -> None:
        """Have a rank log numbers of some steps, as one record."""
        names = tuple(dict.fromkeys(name for _, values in steps for name in values))
        rows = tuple((step, time.time(), *map(values.get, names)) for step, values in steps)
        self._say(rank, Metrics(self._ranks[rank].head, names, rows))

    def happens(self, rank: int, kind: str, step: int, **facts: Any) -> None:
        """Have a rank tell that something happened."""
        self._say(rank, Event(self._ranks[rank].head, kind, step, time.time(), facts))

    def ends(self, state: str, reason: str) -> None:
        """Have the launch process say that the job is over, until the weaver knows."""

        def is_over() -> bool:
            with contextlib.suppress(OSError):
                self._do(
                    self._agent.act(job_event("job_ended", self.job, state=state, reason=reason))
                )
                return bool(asyncio.run(self._plane.ask("job", job=self.job))["state"] == state)
            return False

        until(is_over, PATIENCE)

    def is_stored(self) -> bool:
        """Tell whether the weaver has said that everything is stored."""
        return all(self._upto(rank) >= len(self._records[rank]) for rank in range(self._count))

    def _say(self, rank: int, record: Message) -> None:
        self._records[rank].append(record)
        self._do(self._send(rank, len(self._records[rank])))

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _upto(self, rank: int) -> int:
        life = self._ranks[rank].head.incarnation
        heard = [each.upto for each in self._agent.of(Stored) if each.head.incarnation == life]
        return max(heard, default=0)

    async def _begin(self) -> None:
        bus = await NatsBus.connect(self._plane.nats.url)
        agent = self._agent = FakeAgent(bus, f"node-{self.job}")
        await agent.start()
        for number in range(self._count):
            who = register(number, job=self.job, generation=self._generation, world=self._count)
            self._ranks.append(agent.rank(who))
        facts = {"name": self._name, "scheduler": "local", "handle": f"local://x/{self.job}"}
        await agent.act(job_event("job", self.job, owner="ada", **facts))
        while not agent.epoch:
            with contextlib.suppress(NoReply):
                await agent.hello()
        self._again = asyncio.ensure_future(self._repeat())

    async def _end(self) -> None:
        self._again.cancel()
        await asyncio.gather(self._again, return_exceptions=True)
        await self._agent.bus.close()

    async def _send(self, rank: int, first: int) -> None:
        records = self._records[rank][first - 1 :]
        head = self._ranks[rank].head
        with contextlib.suppress(BusLost):
            await self._agent.send(head, first, *records, follows=first - 1)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN)
            with contextlib.suppress(BusLost):
                await self._agent.beat()
            for rank in range(self._count):
                upto = self._upto(rank)
                if upto < len(self._records[rank]):
                    await self._send(rank, upto + 1)


class Launched:
    """The run folder of a job, as its launch process leaves it."""

    def __init__(self, plane: Plane, job: str, ranks: int = 2) -> None:
        self.folder = plane.home / "runs" / job
        (self.folder / "logs").mkdir(parents=True)
        its = tuple(RankRecord("trainer", 0, n, n, logs=f"trainer/0/{n}") for n in range(ranks))
        logs = str(self.folder / "logs")
        self._record = RunRecord(
            job,
            job,
            "",
            "ada",
            "here",
            logs,
            "2026-01-01",
            launcher=ProcessIdentity.mine(),
            ranks=its,
        )
        self._files = [LogFiles(self.folder / "logs" / rank.logs) for rank in its]
        self.write(AppState.RUNNING)

    def write(self, state: AppState) -> None:
        """Write the record; the folder is complete with it."""
        shape = {**self._record.to_dict(), "state": state.name}
        partial = self.folder / "partial"
        partial.write_text(json.dumps(shape))
        partial.replace(self.folder / "status.json")

    def print(self, rank: int, stream: str, text: str) -> None:
        self._files[rank].write(stream, text.encode())

    def lines(self) -> list[tuple[int, str, str]]:
        """Return every line of every file, read with nothing of ours between."""
        found = []
        for path in sorted(Path(self.folder, "logs").glob("trainer/0/*/std*.log")):
            rank, stream = int(path.parent.name), path.stem
            found += [(rank, stream, line) for line in path.read_text().splitlines()]
        return found
