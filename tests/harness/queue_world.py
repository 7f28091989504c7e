"""A coordinator over a real database, and a world that counts what is started in it."""

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from torchloom.errors import Failure
from torchloom.launch.records.resumption import Continuation
from torchloom.messages.plane import NO_RANK, VERSION, Device, Head, Hello
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.states import JobState
from torchloom.weaver.events import (
    BackgroundTasks,
    Dispatcher,
    JobVacated,
    Journal,
    NodeReported,
    on,
)
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.coordinator import Coordinator, NewAttempt
from torchloom.weaver.jobs.launch import LaunchOrder, RunSeen
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.jobs.submissions import SubmissionRequest
from torchloom.weaver.store import StateStore, open_store
from torchloom.weaver.store.state import Transaction

from .fresh_databases import fresh


class Crash(BaseException):
    """The process is gone; nothing of it does anything any more."""


class Fate:
    """Counts the steps of a process and ends it in one of them; later ones it never takes."""

    def __init__(self, last: int = 1 << 30) -> None:
        self.last = last
        self.taken = 0
        self.is_over = False
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self.taken += 1
            self.is_over = self.is_over or self.taken >= self.last
            if self.is_over:
                raise Crash


class DoomedStore(StateStore):
    """A store whose process may die before a transaction is stored, and after."""

    def __init__(self, engine: sa.Engine, fate: Fate) -> None:
        super().__init__(engine)
        self._fate = fate
        self._depth = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[Transaction]:
        self._depth += 1
        try:
            with super().together() as transaction:
                yield transaction
                if self._depth == 1:
                    self._fate.step()
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._fate.step()


class World:
    """Runs by their job's id: they outlive whoever started them, and cannot be made twice."""

    def __init__(self) -> None:
        self.fate = Fate()
        self.starts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.orders: dict[str, LaunchOrder] = {}
        self.running: set[str] = set()
        self.breaks: dict[str, str] = {}  # by name of a job: what its start says
        self.slow: dict[str, threading.Event] = {}  # by name of a job: what its start waits for
        self.slow_seen = self.is_stubborn = False
        self._lock = threading.Lock()

    def look(self, job: str, left: int | None = None) -> RunSeen:
        lives = self.starts[job]
        return RunSeen.BEGUN if lives > (0 if left is None else left + 1) else RunSeen.NOTHING

    def start(self, order: LaunchOrder) -> None:
        self.fate.step()
        if wait := self.slow.get(str(order.spec["name"])):
            self.slow_seen = True
            wait.wait()
        if why := self.breaks.get(str(order.spec["name"])):
            raise Failure(why)
        with self._lock:
            if self.starts[order.job] > (0 if order.left is None else order.left + 1):
                self.refused[order.job] += 1
                raise Failure("the run exists")
            self.starts[order.job] += 1
            self.orders[order.job] = order
            self.running.add(order.job)
        self.fate.step()

    def resume(self, job: str, asked: Continuation) -> None:
        """All jobs of this world come through the queue."""
        raise NotImplementedError

    def stop(self, job: str, reason: str) -> None:
        if self.is_stubborn:
            raise Failure("it runs elsewhere")
        self.running.discard(job)


class Plane:
    """What a weaver has of the queue, in one process that may die."""

    def __init__(self, folder: Path, world: World, fate: Fate | None = None) -> None:
        world.fate = fate or Fate()
        self.world = world
        self.store = open_store(fresh(folder))
        self.store.state.close()
        self.state = DoomedStore(self.store.state._engine, world.fate)
        self.state.take_epoch("host", 1)
        self.journal = Journal(self.state)
        dropped: Counter[str] = Counter()
        events, self.tasks = Dispatcher(), BackgroundTasks()
        self.jobs = JobRegistry(self.state, self.journal, events, dropped)
        roster = Roster(self.state, self.jobs, self.journal, events, dropped)
        self.devices = DeviceMap(self.state, (), self.journal)
        self.roster = roster
        self.coordinator = Coordinator(
            self.state,
            self.jobs,
            roster,
            self.devices,
            self.journal,
            world,
            events,
            self.tasks,
            gathering=0.0,
        )
        events.connect(on(JobVacated, self.coordinator.queue.on_job_vacated))

    def node(self, name: str, cpus: int, *gpus: str, memory_mb: int = 0) -> None:
        """Have an agent say what it has."""
        devices = tuple(Device(uuid, "cuda", index) for index, uuid in enumerate(gpus))
        head = Head(VERSION, "", 0, NO_RANK, "")
        said = Hello(head, name, name, "boot", 1, 0, devices, (), cpus, memory_mb)
        self.roster.greet(said)
        self.devices.seen(name, devices)
        self.coordinator.nodes.on_node_reported(NodeReported(said))

    async def submit(self, name: str = "job", workers: int = 1, **more: Any) -> str:
        """Submit a job; return its id."""
        words = {key: more.pop(key) for key in ("owner", "key") if key in more}
        each = {"workers": workers, **more.pop("resources", {})}
        plain = {"name": name, "script": "train.py", "resources": each, **more}
        wanted = SubmissionRequest(job_from_dict(plain), plain, **{"owner": "alice", **words})
        job, _ = await self.coordinator.submit(wanted)
        return job.id

    def end(self, job: str) -> None:
        """Have a run end well."""
        self.world.running.discard(job)
        self.jobs.end(job, JobState.COMPLETED, "ranks_ended")

    def learn(self) -> None:
        """Learn what has ended while nobody looked, as a weaver does before it goes on."""
        for job in self.jobs.active():
            is_later = self.world.starts[job.id] > job.facts.get("left", -1) + 1
            if is_later and job.id not in self.world.running:
                self.end(job.id)

    def resume(self, job: str) -> None:
        """Have a job that has ended go on, beyond the lives that its run has had."""
        known, row = self.jobs.get(job), self.coordinator.submission(job)
        assert known is not None
        assert row is not None
        left = self.world.starts[job] - 1
        self.coordinator.resume(known, NewAttempt(row.spec, "ann", "once more", left))

    async def settled(self) -> None:
        """Come back when nothing is being started."""
        while not self.world.fate.is_over:
            is_busy = any(map(self.coordinator.starting.is_busy, [j.id for j in self.jobs.all()]))
            await asyncio.sleep(0)  # in this turn the end of the last one is noted
            if not is_busy:
                return

    async def close(self) -> None:
        await self.coordinator.close()
        self.state.close()


def stored(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Read the database with nothing of ours between."""
    return stored_at_once(folder, query)[0]


def stored_at_once(folder: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """Read several things of one instant."""
    path = f"file:{folder / 'state.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, isolation_level=None)) as base:
        base.execute("BEGIN")
        return [base.execute(query).fetchall() for query in queries]


def given_twice(folder: Path, cpus: dict[str, int], needs: dict[str, int]) -> list[str]:
    """Return what is wrong with the placements by the database alone: a slot or a GPU that two
    have, a job that has part of what it needs, one that runs without or waits with a place."""
    rows, jobs = stored_at_once(
        folder,
        "SELECT job, node, workers, cpus, gpus FROM placements",
        "SELECT id, state FROM jobs",
    )
    states = dict(jobs)
    used, workers, gpus = Counter[str](), Counter[str](), Counter[str]()
    for job, node, count, each, uuids in rows:
        used[node] += each
        workers[job] += count
        gpus.update(json.loads(uuids))
    running = {job for job, state in states.items() if state == "RUNNING"}
    return [
        *(f"{node} has {cpus[node]}, gave {n}" for node, n in used.items() if n > cpus[node]),
        *(f"{uuid} was given twice" for uuid, n in gpus.items() if n > 1),
        *(f"{job} is half placed" for job, n in workers.items() if needs.get(job, n) != n),
        *(f"{job} waits and is placed" for job in workers if states[job] == "QUEUED"),
        *(f"{job} runs and has no place" for job in running - set(workers)),
    ]
