"""Own the queue: what was submitted waits, is placed, is started once, and gives its place back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchloom.launch.records.resumption import AS_IT_WAS, Continuation
from torchloom.rules import queue
from torchloom.rules.lifecycle import CANCELLED_BY_USER
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.states import JobState
from torchloom.weaver.events import BackgroundTasks, Dispatcher, JobStopping
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs import job_queue
from torchloom.weaver.jobs.job_queue import GATHERING, NodeRooms, Turns
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
from torchloom.weaver.journal import Journal
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Fact, JobRow, QuotaRow, SubmissionRow


@dataclass(frozen=True, slots=True)
class Again:
    """How a job is to continue: as this spec, beyond a life of its run."""

    spec: Any
    author: str
    reason: str
    left: int  # restarts of the life that is left behind; below zero there was none
    asked: Continuation = AS_IT_WAS
    question: dict[str, Any] | None = None  # by which the same question is known again


class Coordinator:
    """The parts of the queue, wired. `start` goes on where the last weaver was."""

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
        self.turns = Turns(state, jobs, self.starting.begin)
        expected = [agent.id for agent in roster.agents() if agent.state == "up"]
        self.rooms = NodeRooms(self.turns, devices, expected, gathering)
        self._submissions = Submissions(state, jobs, journal, self.turns, tasks)

    def start(self) -> None:
        """Go on with what was stored; runs have been looked at before."""
        self.turns.go_on()
        self.rooms.start()

    async def close(self) -> None:
        """Begin nothing more."""
        self._submissions.close()
        self.rooms.close()
        await self.starting.close()

    async def submit(self, wanted: SubmissionRequest) -> tuple[JobRow, bool]:
        """Store a job, and tell whether it is a new one."""
        await self.nodes_for(wanted.need)
        return await self._submissions.add(wanted)

    async def submit_all(self, batch: Sequence[SubmissionRequest]) -> list[Outcome]:
        """Store jobs in one transaction; return what became of each, in their order."""
        if any(queue.shortage(wanted.need, self.turns.queue.nodes) for wanted in batch):
            await self.rooms.gathered.wait()
        return await self._submissions.add_all(batch)

    def leave_queue(self, jobs: Sequence[JobRow], author: str, reason: str) -> list[JobRow]:
        """Cancel jobs that wait, in one transaction and one step of the queue."""
        why = reason or CANCELLED_BY_USER
        with self._state.together():
            effects = self.turns.leave(job.id for job in jobs)
            for job in jobs:
                self._journal.note("cancelled", job.id, author=author, reason=why)
                self._jobs.end(job.id, JobState.CANCELLED, why)
        self.turns.act(effects)
        for job in jobs:
            self._events.publish(JobStopping(job.id))
        return [self._jobs.get(job.id) or job for job in jobs]

    async def nodes_for(self, need: queue.Need | None) -> None:
        """Wait for nodes that are about to register, if those that are there are too small."""
        if need is not None and queue.shortage(need, self.turns.queue.nodes):
            await self.rooms.gathered.wait()

    async def cancel(self, job: JobRow, author: str, reason: str) -> JobRow:
        """End a job: one that waits leaves the queue, one that runs is stopped."""
        why = reason or CANCELLED_BY_USER
        is_waiting = job.state == JobState.QUEUED
        with self._state.together():
            self._journal.note("cancelled", job.id, author=author, reason=why)
            if is_waiting or is_released(job):
                self._jobs.end(job.id, JobState.CANCELLED, why)
            elif job.id in self.turns.queue.placed:
                self._jobs.mark(job.id, {CANCEL: why})
        self._events.publish(JobStopping(job.id))
        if not is_waiting and not is_released(job) and not self.starting.is_busy(job.id):
            await self.starting.stop(job.id, why)
        return self._jobs.get(job.id) or job

    def resume(self, job: JobRow, again: Again) -> None:
        """Have a job of the queue that has ended wait for its turn once more, as a new attempt."""
        row = self.submission(job.id)
        assert row is not None
        spec = job_from_dict(again.spec)
        need = job_queue.need_of(spec.resources)
        with self._state.together():
            effects = self.turns.decide(queue.JobSubmitted(job.id, row.owner, need, row.priority))
            for effect in effects:
                if isinstance(effect, queue.Refuse):
                    raise Unschedulable(effect.reason)
            number = self.turns.queue.submitted
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
            told = _told(replace(again.asked, ranks=spec.resources.workers))
            self._journal.note(
                "resume", job.id, author=again.author, reason=again.reason, facts=told
            )
            self.turns.store(effects)
        self.turns.act(effects)

    async def relaunch(self, job: JobRow, author: str, reason: str, asked: Continuation) -> None:
        """Have a run that came another way go on, as it was launched; it needs no turn."""
        await self.starting.resume(job.id, asked)
        self._journal.note("resume", job.id, author=author, reason=reason, facts=_told(asked))

    def set_quota(self, owner: str, workers: int | None, author: str) -> None:
        """Store how many workers an owner may have; none means as many as there are."""
        with self._state.together():
            if workers is None:
                self._state.remove(QuotaRow, owner=owner)
            else:
                self._state.put(QuotaRow(owner, workers))
            facts = {"owner": owner, "workers": workers}
            self._journal.note("quota_set", author=author, facts=facts)
            effects = self.turns.decide(queue.QuotaSet(owner, workers))
            self.turns.store(effects)
        self.turns.act(effects)

    def submission(self, job: str) -> SubmissionRow | None:
        """Return how a job was asked for; nothing for one that came another way."""
        return self._state.one(SubmissionRow, job=job)


def _told(asked: Continuation) -> dict[str, Any]:
    """Return what a journal keeps of a resume; what was not said is left out, but for two."""
    facts: dict[str, Any] = {"workers": asked.ranks, "from_step": asked.step}
    facts |= {} if asked.until is None else {"until": asked.until}
    return {**facts, "from_scratch": True} if asked.from_scratch else facts
