"""The queue as it stands: the rules decide, and each decision is stored before it is acted on."""

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

COUNT = "submissions"  # among the facts: how many there were
_TOGETHER = 1000  # rows that are asked for at a time
PLACED = "placed"
GATHERING = 10.0  # seconds in which nodes come to a weaver that has just begun


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node's agent said that it has for jobs."""

    host: str
    cpus: int
    memory_mb: int
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, said: Hello) -> "NodeOffer":
        gpus = tuple(device.uuid for device in said.devices if device.kind != "cpu")
        return cls(said.host, said.cpus, said.memory_mb, gpus)

    def room(self, devices: DeviceMap) -> NodeCapacity:
        """Return what of it can be given to jobs: a GPU that is not well is left out."""
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
    """Return the queue as it was stored; which nodes there are, these will say themselves."""
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


def forgotten(state: StateStore, jobs: JobRegistry) -> set[str]:
    """Return the jobs that have ended and still hold what they were given."""
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


class Turns:
    """`rules/queue` over the database: whoever reads it after a crash goes on from there."""

    def __init__(self, state: StateStore, jobs: JobRegistry, begin: Callable[[str], None]) -> None:
        self._state = state
        self._jobs = jobs
        self._begin = begin
        self._why: tuple[queue.State, dict[str, str]] = (queue.State(), {})
        self.queue = load(state, jobs)

    def why(self) -> dict[str, str]:
        """Return what every waiting job waits for, whose turn is first at the front."""
        if self._why[0] is not self.queue:  # known by heart until something changes
            self._why = (self.queue, queue.reasons(self.queue))
        return self._why[1]

    def take(self, event: queue.Event) -> None:
        """Take in an event, and do what follows from it."""
        with self._state.together():
            effects = self.decide(event)
            self.store(effects)
        self.act(effects)

    def decide(self, event: queue.Event) -> Effects:
        """Take in an event; what follows is to be stored, in the same transaction, and done."""
        self.queue, effects = queue.step(self.queue, event)
        return effects

    def store(self, effects: Iterable[queue.Effect]) -> None:
        """Store who was given what: from now on these jobs are to run."""
        for effect in effects:
            if isinstance(effect, queue.Assign):
                self._state.put(*rows_of(effect.job, effect.shares))
                self._jobs.turn(effect.job, JobState.RUNNING, PLACED)

    def act(self, effects: Iterable[queue.Effect]) -> None:
        """Do what has been stored."""
        for effect in effects:
            if isinstance(effect, queue.Assign):
                self._begin(effect.job)

    def go_on(self) -> None:
        """Take up what an earlier weaver has left: places of the ended, starts that are due."""
        if ended := forgotten(self._state, self._jobs):
            self._state.remove(Placement, job=ended)
        for job in self.queue.placed:
            self._begin(job)

    def leave(self, jobs: Iterable[str]) -> Effects:
        """Take jobs that wait out of the queue, in one step and within one transaction.

        What follows is stored; the caller acts on it once the transaction is.
        """
        effects = self.decide(queue.JobsGone(frozenset(jobs)))
        self.store(effects)
        return effects

    def on_job_vacated(self, vacated: JobVacated) -> None:
        """Remove a job from the queue, and free its placement."""
        job = vacated.job
        if job in self.queue.waiting or job in self.queue.placed:
            with self._state.together():
                if job in self.queue.placed:
                    self._state.remove(Placement, job=job)
                effects = self.decide(queue.JobGone(job))
                self.store(effects)
            self.act(effects)


class NodeRooms:
    """Tells the queue of nodes that come, change and go."""

    def __init__(
        self, turns: Turns, devices: DeviceMap, expected: Iterable[str], gathering: float
    ) -> None:
        self._turns = turns
        self._devices = devices
        self._offers: dict[str, NodeOffer] = {}
        self._missing = set(expected)  # who was there before this weaver began
        self._gathering = gathering
        self._timer: asyncio.TimerHandle | None = None
        self.gathered = asyncio.Event()  # whoever was expected is there, or is not awaited longer

    def start(self) -> None:
        """Wait for nodes, but not for ever."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._gathering, self.gathered.set)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_node_reported(self, reported: NodeReported) -> None:
        """Add or update a node. The agent of a job offers nothing."""
        said = reported.hello
        self._missing.discard(said.agent)
        if said.cpus:
            self._offers[said.agent] = NodeOffer.of(said)
            self._look_at(said.agent)
        self._look_who_is_missing()

    def on_agent_down(self, down: AgentDown) -> None:
        """Remove the node of an agent that is silent or has left."""
        agent = down.agent
        self._missing.discard(agent)
        self._offers.pop(agent, None)
        if agent in self._turns.queue.nodes:
            self._turns.take(queue.NodeDown(agent))
        self._look_who_is_missing()

    def look(self) -> None:
        """Look whether the health of devices has changed what nodes have."""
        for agent in list(self._offers):
            self._look_at(agent)

    def all(self) -> dict[str, tuple[NodeOffer, NodeCapacity]]:
        """Return what each node has, and what of it is free."""
        free = self._turns.queue.free()
        return {name: (self._offers[name], free[name]) for name in self._turns.queue.nodes}

    def _look_at(self, agent: str) -> None:
        room = self._offers[agent].room(self._devices)
        if self._turns.queue.nodes.get(agent) != room:
            self._turns.take(queue.NodeUp(agent, room))

    def _look_who_is_missing(self) -> None:
        if self._turns.queue.nodes and not self._missing:
            self.gathered.set()
