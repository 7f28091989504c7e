"""Submit, place, start, cancel and resume jobs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchloom.launch.records.resumption import AS_IT_WAS, Continuation
from torchloom.rules import queue
from torchloom.rules.lifecycle import CANCELLED_BY_USER
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.states import JobState
from torchloom.weaver.events import BackgroundTasks, Dispatcher, JobStopping, Journal
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs import job_queue
from torchloom.weaver.jobs.job_queue import GATHERING, JobQueue, NodeInventory
from torchloom.weaver.jobs.launch import CANCEL, FROM_STEP, STARTED, UNTIL, JobStarter, Launcher
from torchloom.weaver.jobs.registry import (
    LEFT,
    RELEASING,
    RESIZING,
    RESUMED,
    WORLD_SIZE,
    JobRegistry,
    is_released,
)
from torchloom.weaver.jobs.submissions import Outcome, SubmissionRequest, Submissions, Unschedulable
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Fact, JobRow, QuotaRow, SubmissionRow


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """How a job of the queue is resumed: with this spec, as another incarnation of its run."""

    spec: Any
    author: str
    reason: str
    left: int  # restarts of the last incarnation of its run; below zero there was none
    asked: Continuation = AS_IT_WAS
    question: dict[str, Any] | None = None  # by which a repeated request is recognized


class Coordinator:
    """The queue with its nodes, submissions and starts. `start` resumes what the rows say."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        roster: Roster,
        devices: DeviceMap,
        journal: Journal,
        launcher: Launcher,
        events: Dispatcher,
        tasks: BackgroundTasks,
        gathering: float = GATHERING,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._journal = journal
        self._events = events
        self.starting = JobStarter(state, jobs, roster, launcher, events, tasks)
        self.queue = JobQueue(state, jobs, self.starting.begin)
        expected = [agent.id for agent in roster.agents() if agent.state == "up"]
        self.nodes = NodeInventory(self.queue, devices, expected, gathering)
        self._submissions = Submissions(state, jobs, journal, self.queue, tasks)

    def start(self) -> None:
        """Resume what was stored; the run folders have been read before."""
        self.queue.resume()
        self.nodes.start()

    async def close(self) -> None:
        """Start no more jobs."""
        self._submissions.close()
        self.nodes.close()
        await self.starting.close()

    async def submit(self, wanted: SubmissionRequest) -> tuple[JobRow, bool]:
        """Store a job; return it, and whether it is new."""
        await self.nodes_for(wanted.need)
        return await self._submissions.add(wanted)

    async def submit_all(self, batch: Sequence[SubmissionRequest]) -> list[Outcome]:
        """Store jobs in one transaction; return the outcome of each, in their order."""
        if any(queue.shortage(wanted.need, self.queue.state.nodes) for wanted in batch):
            await self.nodes.gathered.wait()
        return await self._submissions.add_all(batch)

    def leave_queue(self, jobs: Sequence[JobRow], author: str, reason: str) -> list[JobRow]:
        """Cancel waiting jobs, in one transaction and one step of the queue."""
        why = reason or CANCELLED_BY_USER
        with self._state.together():
            effects = self.queue.leave(job.id for job in jobs)
            for job in jobs:
                self._journal.note("cancelled", job.id, author=author, reason=why)
                self._jobs.end(job.id, JobState.CANCELLED, why)
        self.queue.act(effects)
        for job in jobs:
            self._events.publish(JobStopping(job.id))
        return [self._jobs.get(job.id) or job for job in jobs]

    async def nodes_for(self, need: queue.Need | None) -> None:
        """Wait for nodes that may register, if those that are there are too small."""
        if need is not None and queue.shortage(need, self.queue.state.nodes):
            await self.nodes.gathered.wait()

    async def cancel(self, job: JobRow, author: str, reason: str) -> JobRow:
        """Cancel a job: a waiting one leaves the queue, a running one is stopped."""
        why = reason or CANCELLED_BY_USER
        is_waiting = job.state == JobState.QUEUED
        with self._state.together():
            self._journal.note("cancelled", job.id, author=author, reason=why)
            if is_waiting or is_released(job):
                self._jobs.end(job.id, JobState.CANCELLED, why)
            elif job.id in self.queue.state.placed:
                self._jobs.mark(job.id, {CANCEL: why})
        self._events.publish(JobStopping(job.id))
        if not is_waiting and not is_released(job) and not self.starting.is_busy(job.id):
            await self.starting.stop(job.id, why)
        return self._jobs.get(job.id) or job

    def resume(self, job: JobRow, again: NewAttempt) -> None:
        """Queue a job that has ended once more, as a new attempt."""
        row = self.submission(job.id)
        assert row is not None
        spec = job_from_dict(again.spec)
        need = job_queue.need_of(spec.resources)
        with self._state.together():
            effects = self.queue.decide(queue.JobSubmitted(job.id, row.owner, need, row.priority))
            for effect in effects:
                if isinstance(effect, queue.Refuse):
                    raise Unschedulable(effect.reason)
            number = self.queue.state.submitted
            self._state.put(replace(row, spec=again.spec, number=number))
            self._state.put(Fact(job_queue.COUNT, number))
            facts = {
                STARTED: False,
                CANCEL: None,
                RELEASING: None,
                RESIZING: None,
                LEFT: again.left,
                FROM_STEP: again.asked.step,
                UNTIL: again.asked.until,
                RESUMED: again.question,
                WORLD_SIZE: spec.resources.workers,
            }
            self._jobs.resume(job.id, f"resumed_by_{again.author}", facts)
            noted = _facts(replace(again.asked, ranks=spec.resources.workers))
            self._journal.note(
                "resume", job.id, author=again.author, reason=again.reason, facts=noted
            )
            self.queue.store(effects)
        self.queue.act(effects)

    async def relaunch(self, job: JobRow, author: str, reason: str, asked: Continuation) -> None:
        """Resume a run that was not submitted to the queue, as it was launched."""
        await self.starting.resume(job.id, asked)
        self._journal.note("resume", job.id, author=author, reason=reason, facts=_facts(asked))

    def set_quota(self, owner: str, workers: int | None, author: str) -> None:
        """Store how many workers an owner may have; none removes the limit."""
        with self._state.together():
            if workers is None:
                self._state.remove(QuotaRow, owner=owner)
            else:
                self._state.put(QuotaRow(owner, workers))
            facts = {"owner": owner, "workers": workers}
            self._journal.note("quota_set", author=author, facts=facts)
            effects = self.queue.decide(queue.QuotaSet(owner, workers))
            self.queue.store(effects)
        self.queue.act(effects)

    def submission(self, job: str) -> SubmissionRow | None:
        """Return how a job was submitted; none for one that was not."""
        return self._state.one(SubmissionRow, job=job)


def _facts(asked: Continuation) -> dict[str, Any]:
    """Return what the journal keeps of a resumption."""
    facts: dict[str, Any] = {"workers": asked.ranks, "from_step": asked.step}
    facts |= {} if asked.until is None else {"until": asked.until}
    facts |= {} if not asked.distributed else {"distributed": dict(asked.distributed)}
    return {**facts, "from_scratch": True} if asked.from_scratch else facts
