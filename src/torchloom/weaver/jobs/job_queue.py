"""The queue of jobs: the rules decide, and each decision is stored before it is acted on."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchloom.messages.plane import Hello
from torchloom.rules import queue
from torchloom.rules.devices import DeviceState
from torchloom.rules.queue import Need, NodeCapacity, NodeShare
from torchloom.specs.jobspec import JobSpec, Resources
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.states import JobState
from torchloom.weaver.events import AgentDown, JobVacated, NodeReported
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.jobs.registry import JobRegistry, is_over
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Fact, Placement, QuotaRow, SubmissionRow

COUNT = "submissions"  # the fact that holds how many there were
_TOGETHER = 1000  # rows of one query
PLACED = "placed"
GATHERING = 10.0  # seconds in which nodes register with a weaver that has just started


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node has for jobs, as its agent reported it."""

    host: str
    cpus: int
    memory_mb: int
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, hello: Hello) -> "NodeOffer":
        gpus = tuple(device.uuid for device in hello.devices if device.kind != "cpu")
        return cls(hello.host, hello.cpus, hello.memory_mb, gpus)

    def capacity(self, devices: DeviceMap) -> NodeCapacity:
        """Return what can be given to jobs: GPUs that are not healthy are left out."""
        known = {uuid: devices.get(uuid) for uuid in self.gpus}
        well = (
            uuid for uuid, row in known.items() if row is None or row.state == DeviceState.HEALTHY
        )
        return NodeCapacity(self.cpus, self.memory_mb, tuple(well))


def need_of(each: Resources) -> Need:
    """Return what a job must be given."""
    return Need(each.workers, each.cpus_per_worker, each.gpus_per_worker, each.memory_mb_per_worker)


def spec_of(row: SubmissionRow) -> JobSpec:
    """Return a job as its owner described it."""
    return job_from_dict(row.spec)


def rows_of(job: str, shares: Iterable[NodeShare]) -> list[Placement]:
    """Return what a job was given, to be stored."""
    return [
        Placement(job, each.node, each.workers, each.cpus, each.memory_mb, list(each.gpus))
        for each in shares
    ]


def shares_of(rows: Iterable[Placement]) -> tuple[NodeShare, ...]:
    """Return what a job was given, as it was stored."""
    return tuple(
        NodeShare(row.node, row.workers, row.cpus, row.memory_mb, tuple(row.gpus)) for row in rows
    )


def load(state: StateStore, jobs: JobRegistry) -> queue.State:
    """Return the queue as stored, without nodes: these register themselves."""
    given: dict[str, list[Placement]] = {}
    for share in state.find(Placement):
        given.setdefault(share.job, []).append(share)
    waiting, placed = {}, {}
    for row in _submitted(state, jobs):
        if row.job in given:
            placed[row.job] = queue.Placed(row.owner, shares_of(given[row.job]))
        elif _is_waiting(jobs, row.job):
            need = need_of(spec_of(row).resources)
            waiting[row.job] = queue.Waiting(row.job, row.owner, need, row.priority, row.number)
    quotas = {row.owner: row.workers for row in state.find(QuotaRow)}
    count = state.one(Fact, name=COUNT)
    return queue.State({}, waiting, placed, quotas, count.value if count else 0)


def ended_placements(state: StateStore, jobs: JobRegistry) -> set[str]:
    """Return the jobs that have ended and still have a placement."""
    found = {row.job for row in state.find(Placement)}
    return {name for name in found if (job := jobs.get(name)) is None or is_over(job)}


def used_by(placed: Mapping[str, queue.Placed], node: str) -> list[str]:
    """Return the jobs that have a share of a node."""
    return [job for job, one in placed.items() if any(s.node == node for s in one.shares)]


def _submitted(state: StateStore, jobs: JobRegistry) -> Iterator[SubmissionRow]:
    """Yield the submissions of jobs that have not ended."""
    names = [job.id for job in jobs.active()]
    for begin in range(0, len(names), _TOGETHER):
        yield from state.find(SubmissionRow, job=names[begin : begin + _TOGETHER])


def _is_waiting(jobs: JobRegistry, name: str) -> bool:
    job = jobs.get(name)
    return job is not None and job.state == JobState.QUEUED


Effects = tuple[queue.Effect, ...]


class JobQueue:
    """`rules/queue` over the database: after a crash the next weaver continues from the rows."""

    def __init__(self, state: StateStore, jobs: JobRegistry, begin: Callable[[str], None]) -> None:
        self._state = state
        self._jobs = jobs
        self._begin = begin
        self._why: tuple[queue.State, dict[str, str]] = (queue.State(), {})
        self.state = load(state, jobs)

    def why(self) -> dict[str, str]:
        """Return what every waiting job waits for, in the order in which they are placed."""
        if self._why[0] is not self.state:  # cached until the state changes
            self._why = (self.state, queue.reasons(self.state))
        return self._why[1]

    def take(self, event: queue.Event) -> None:
        """Handle an event: decide, store, act."""
        with self._state.together():
            effects = self.decide(event)
            self.store(effects)
        self.act(effects)

    def decide(self, event: queue.Event) -> Effects:
        """Return the effects of an event; the caller stores them in its transaction, and acts."""
        self.state, effects = queue.step(self.state, event)
        return effects

    def store(self, effects: Iterable[queue.Effect]) -> None:
        """Store the placements that were decided."""
        for effect in effects:
            if isinstance(effect, queue.Assign):
                self._state.put(*rows_of(effect.job, effect.shares))
                self._jobs.turn(effect.job, JobState.RUNNING, PLACED)

    def act(self, effects: Iterable[queue.Effect]) -> None:
        """Start the jobs that were placed."""
        for effect in effects:
            if isinstance(effect, queue.Assign):
                self._begin(effect.job)

    def resume(self) -> None:
        """Finish what an earlier weaver left: placements of ended jobs, starts that are due."""
        if ended := ended_placements(self._state, self._jobs):
            self._state.remove(Placement, job=ended)
        for job in self.state.placed:
            self._begin(job)

    def leave(self, jobs: Iterable[str]) -> Effects:
        """Remove waiting jobs from the queue, in one step and within the caller's transaction.

        The effects are stored; the caller acts on them after the transaction.
        """
        effects = self.decide(queue.JobsGone(frozenset(jobs)))
        self.store(effects)
        return effects

    def on_job_vacated(self, vacated: JobVacated) -> None:
        """Remove a job from the queue, and free its placement."""
        job = vacated.job
        if job in self.state.waiting or job in self.state.placed:
            with self._state.together():
                if job in self.state.placed:
                    self._state.remove(Placement, job=job)
                effects = self.decide(queue.JobGone(job))
                self.store(effects)
            self.act(effects)


class NodeInventory:
    """Keeps the nodes of the queue up to date, by what their agents report."""

    def __init__(
        self, queue: JobQueue, devices: DeviceMap, expected: Iterable[str], gathering: float
    ) -> None:
        self._queue = queue
        self._devices = devices
        self._offers: dict[str, NodeOffer] = {}
        self._missing = set(expected)  # agents that were up before this weaver started
        self._gathering = gathering
        self._timer: asyncio.TimerHandle | None = None
        self.gathered = asyncio.Event()  # the expected nodes are there, or time is up

    def start(self) -> None:
        """Start the time within which nodes are expected."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._gathering, self.gathered.set)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_node_reported(self, reported: NodeReported) -> None:
        """Add or update a node. The agent of a job offers nothing."""
        hello = reported.hello
        self._missing.discard(hello.agent)
        if hello.cpus:
            self._offers[hello.agent] = NodeOffer.of(hello)
            self._update(hello.agent)
        self._check_gathered()

    def on_agent_down(self, down: AgentDown) -> None:
        """Remove the node of an agent that is silent or has left."""
        agent = down.agent
        self._missing.discard(agent)
        self._offers.pop(agent, None)
        if agent in self._queue.state.nodes:
            self._queue.take(queue.NodeDown(agent))
        self._check_gathered()

    def update(self) -> None:
        """Update all nodes by the health of their devices."""
        for agent in list(self._offers):
            self._update(agent)

    def all(self) -> dict[str, tuple[NodeOffer, NodeCapacity]]:
        """Return what each node has, and what is free."""
        free = self._queue.state.free()
        return {name: (self._offers[name], free[name]) for name in self._queue.state.nodes}

    def _update(self, agent: str) -> None:
        capacity = self._offers[agent].capacity(self._devices)
        if self._queue.state.nodes.get(agent) != capacity:
            self._queue.take(queue.NodeUp(agent, capacity))

    def _check_gathered(self) -> None:
        if self._queue.state.nodes and not self._missing:
            self.gathered.set()
