"""What the rules of the queue know, as rows of the database, and back."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchloom.bus.messages import Hello
from torchloom.rules import queue
from torchloom.rules.drmap import DeviceState
from torchloom.rules.placement import Need, Room, Share
from torchloom.specs.job import JobState
from torchloom.specs.jobspec import JobSpec, Resources
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.weaver.devices import Devices
from torchloom.weaver.jobs import Jobs, is_over
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Fact, Placement, Quota, Submission

COUNT = "submissions"  # among the facts: how many there were
_TOGETHER = 1000  # rows that are asked for at a time


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node's agent said that it has for jobs."""

    host: str
    cpus: int
    memory_mb: int
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, said: Hello) -> "Offer":
        gpus = tuple(device.uuid for device in said.devices if device.kind != "cpu")
        return cls(said.host, said.cpus, said.memory_mb, gpus)

    def room(self, devices: Devices) -> Room:
        """Return what of it can be given to jobs: a GPU that is not well is left out."""
        known = {uuid: devices.get(uuid) for uuid in self.gpus}
        well = (
            uuid for uuid, row in known.items() if row is None or row.state == DeviceState.HEALTHY
        )
        return Room(self.cpus, self.memory_mb, tuple(well))


def need_of(each: Resources) -> Need:
    """Return what a job must be given."""
    return Need(each.workers, each.cpus_per_worker, each.gpus_per_worker, each.memory_mb_per_worker)


def spec_of(row: Submission) -> JobSpec:
    """Return a job as its owner described it."""
    return job_from_dict(row.spec)


def rows_of(job: str, shares: Iterable[Share]) -> list[Placement]:
    """Return what a job was given, to be stored."""
    return [
        Placement(job, each.node, each.workers, each.cpus, each.memory_mb, list(each.gpus))
        for each in shares
    ]


def shares_of(rows: Iterable[Placement]) -> tuple[Share, ...]:
    """Return what a job was given, as it was stored."""
    return tuple(
        Share(row.node, row.workers, row.cpus, row.memory_mb, tuple(row.gpus)) for row in rows
    )


def load(state: StateStore, jobs: Jobs) -> queue.State:
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
    quotas = {row.owner: row.workers for row in state.find(Quota)}
    count = state.one(Fact, name=COUNT)
    return queue.State({}, waiting, placed, quotas, count.value if count else 0)


def forgotten(state: StateStore, jobs: Jobs) -> set[str]:
    """Return the jobs that have ended and still hold what they were given."""
    found = {row.job for row in state.find(Placement)}
    return {name for name in found if (job := jobs.get(name)) is None or is_over(job)}


def used_by(placed: Mapping[str, queue.Placed], node: str) -> list[str]:
    """Return the jobs that have a share of a node."""
    return [job for job, one in placed.items() if any(s.node == node for s in one.shares)]


def _submitted(state: StateStore, jobs: Jobs) -> Iterator[Submission]:
    """Yield the submissions of jobs that have not ended."""
    names = [job.id for job in jobs.active()]
    for begin in range(0, len(names), _TOGETHER):
        yield from state.find(Submission, job=names[begin : begin + _TOGETHER])


def _is_waiting(jobs: Jobs, name: str) -> bool:
    job = jobs.get(name)
    return job is not None and job.state == JobState.QUEUED
