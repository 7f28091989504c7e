"""The jobs of the plane, as stored, and how their states change."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torchloom.bus import subjects
from torchloom.messages.plane import NO_RANK, Event
from torchloom.rules import lifecycle
from torchloom.rules.lifecycle import ChangeState, IllegalTransition, Resume
from torchloom.rules.response import FailurePolicy, LossRecovery, OnLoss
from torchloom.specs.states import JobState
from torchloom.weaver.events import Dispatcher, JobChanged, JobVacated, Journal, UnknownJobRequested
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import JobRow, RunRow

WORLD_SIZE = "world_size"  # facts of a job: how many ranks it has, or had
DEADLINE = "deadline"  # when its allocation ends, in unix seconds
POLICY = "policy"  # what to do when something fails
LEFT = "left"  # restarts of the last incarnation of its run that was handled
TOTAL = "total_steps"  # the last step of its program, as its rank 0 reported
SAVING = "saving"  # when to save and what to keep, as its rank 0 reported
RELEASING = "releasing"  # the command that ends its ranks and pauses it
RESIZING = "resizing"  # how it is resumed after that, if it is
RESUMED = "resumed"  # the request that started its last attempt, and its state before
ATTACHED = "attached"  # ranks of its program's group, where that is larger than the job
REPLICA_OF = "replica_of"  # the project whose replicas its ranks report to be
SUBMITTED = "submitted"  # it came through the queue, which alone knows its owner
SHELL = "shell"  # the leader of the session that submitted it
_GIVEN = "policy_given"  # whether its launch process has named a policy
_WORDS = ("name", "owner", "scheduler", "handle", "run_id")


class JobRegistry:
    """Every job, as stored; each change is stored before it is seen."""

    def __init__(
        self,
        state: StateStore,
        journal: Journal,
        events: Dispatcher,
        dropped: Counter[str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._journal = journal
        self._events = events
        self._dropped = dropped
        self._now = now
        self._jobs = {job.id: job for job in state.find(JobRow)}

    def find(self, job: str) -> JobRow | None:
        """Return a job by its id, also one whose run folder was not read yet."""
        if job not in self._jobs:
            self._events.publish(UnknownJobRequested(job))
        return self._jobs.get(job)

    def get(self, job: str) -> JobRow | None:
        return self._jobs.get(job)

    def account(self, job: str) -> str:
        """Return the unix account that a job runs as; none is the plane's own user."""
        known = self._jobs.get(job)
        return known.account if known else ""

    def may_speak(self, agent: str, job: str) -> bool:
        """Tell whether an agent may report on a job: its own, or one of its account.

        Only the plane's own agents may report on a job that is unknown.
        """
        return subjects.may_report_job(agent, job) and subjects.may_report_account(
            agent, self.account(job)
        )

    def all(self) -> list[JobRow]:
        """Return every job, newest first."""
        return sorted(self._jobs.values(), key=lambda job: (job.created_at, job.id), reverse=True)

    def active(self) -> list[JobRow]:
        """Return the jobs that have not ended, newest first."""
        return [job for job in self.all() if not is_over(job)]

    def submit(self, job: JobRow) -> JobRow:
        """Store a job that waits in the queue."""
        job = replace(job, state="QUEUED", attempt=1, created_at=self._now())
        run = RunRow(job.run_id, job.id, job.name, created_at=job.created_at)
        with self._state.together():
            self._state.put(job, run)
        self._jobs[job.id] = job
        self._events.publish(JobChanged(job))
        return job

    def adopt(self, job: JobRow) -> None:
        """Store a job of the queue that runs already, and whose row was lost."""
        self._begin(replace(job, facts={**job.facts, SUBMITTED: True}))

    def mark(self, job: str, facts: Mapping[str, Any]) -> None:
        """Store something about a job."""
        known = self._jobs[job]
        self._put(replace(known, facts={**known.facts, **facts}))

    def appear(self, job: str, generation: int, is_new: bool = False) -> JobRow | None:
        """Return the job of a process that registers; none where its attempt is over.

        A job without a launch process is running again when a new process of it registers.
        """
        known = self._jobs.get(job)
        if known is None:
            return self._begin(JobRow(job, name=job, run_id=job, generation=generation))
        if generation <= known.generation and is_over(known) and (is_launched(known) or not is_new):
            return None
        if generation > known.generation:
            known = replace(known, generation=generation)
            self._put(known, "generation", {"generation": generation})
            self._run_again(known, f"generation_{generation}")
        elif is_over(known):
            self._run_again(known, "started_again")
        return self._jobs[job]

    def update(self, event: Event) -> JobRow:
        """Store the facts that a launch process or a rank reports of its job.

        A rank of a launched job may only name the number of steps, and the policy unless the
        launch process has.
        """
        facts, job = event.facts, event.head.job
        known = self._jobs.get(job)
        if event.head.rank != NO_RANK:
            facts = _from_a_rank(facts, known)
        elif POLICY in facts:
            facts = {**facts, _GIVEN: True}
        if known is not None and known.facts.get(SUBMITTED):
            fixed = _WORDS if known.account else ("owner",)
            facts = {name: value for name, value in facts.items() if name not in fixed}
        base = known or JobRow(job, name=job, run_id=job, generation=event.head.generation)
        words: dict[str, Any] = {name: str(facts[name]) for name in _WORDS if facts.get(name)}
        if type(attempt := facts.get("attempt")) is int:
            words["attempt"] = max(base.attempt, attempt)
        others = {name: value for name, value in facts.items() if name not in _WORDS}
        changed = replace(base, **words, facts={**base.facts, **others})
        if known is None:
            return self._begin(changed)
        if changed != known:
            self._put(changed)
        return changed

    def end(
        self, job: str, state: JobState, reason: str, step: int | None = None, ranks: int = 0
    ) -> bool:
        """End a job at a step, with its number of ranks; false when it is unknown or over."""
        known = self._jobs.get(job)
        if known is None or is_over(known) or not state.is_final:
            return False
        facts = {**known.facts, WORLD_SIZE: ranks} if ranks else known.facts
        self._jobs[job] = replace(known, facts=facts, step=known.step if step is None else step)
        if state is JobState.COMPLETED:
            self.turn(job, JobState.RUNNING, reason)  # the only state that completes
        return self.turn(job, state, reason)

    def release(self, job: str, left: int, step: int | None) -> None:
        """Store that a job was released: it has saved, and its placement is free."""
        known = self._jobs[job]
        facts = {**known.facts, LEFT: left, RELEASING: None}
        known = replace(known, facts=facts, step=known.step if step is None else step)
        with self._state.together():
            self._jobs[job] = known
            if self._move(known, ChangeState(JobState.PAUSED, lifecycle.RELEASED)):
                self._events.publish(JobVacated(job))

    def resume(self, job: str, reason: str, facts: Mapping[str, Any]) -> JobRow:
        """Queue a job that has ended or was released, as a new attempt."""
        known = self._jobs[job]
        self._move(replace(known, facts={**known.facts, **facts}), Resume(reason))
        return self._jobs[job]

    def set_generation(self, job: str, generation: int) -> None:
        """Store that the members of a job form another generation, in the same attempt."""
        known = self._jobs[job]
        if generation > known.generation:
            self._put(replace(known, generation=generation))

    def restarted(self, job: str, reason: str) -> None:
        """Store that a job is running again that had ended, or was released."""
        self._run_again(self._jobs[job], reason)

    def forget(self, job: str) -> None:
        """Remove a job that has ended, and its run."""
        with self._state.together():
            self._state.remove(RunRow, job=job)
            self._state.remove(JobRow, id=job)
        del self._jobs[job]

    def turn(self, job: str, state: JobState, reason: str) -> bool:
        """Move a job to another state; a transition that the rules refuse is only counted."""
        return self._move(self._jobs[job], ChangeState(state, reason))

    def _run_again(self, job: JobRow, reason: str) -> None:
        if is_over(job) or is_released(job):
            self._move(job, Resume(reason))
        if is_over(job) or job.state == JobState.PAUSED:
            self.turn(job.id, JobState.RUNNING, reason)

    def _move(self, job: JobRow, event: lifecycle.Event) -> bool:
        before = lifecycle.JobLifecycle(job.id, JobState(job.state), job.reason, job.attempt)
        try:
            after, changes = lifecycle.step(before, event)
        except IllegalTransition:
            self._dropped["illegal_transition"] += 1
            return False
        ended = self._now() if after.state.is_final else None
        moved = replace(job, state=str(after.state), reason=after.reason, attempt=after.attempt)
        if moved.started_at is None and after.state is JobState.RUNNING:
            moved = replace(moved, started_at=self._now())
        for change in changes:
            facts = {"before": str(change.before), "after": str(change.after)}
            self._put(replace(moved, ended_at=ended), "job_state", facts)
        return bool(changes)

    def _begin(self, job: JobRow) -> JobRow:
        now = self._now()
        attempt = max(1, job.attempt)
        job = replace(job, state="RUNNING", attempt=attempt, created_at=now, started_at=now)
        run = RunRow(job.run_id, job.id, job.name, created_at=now)
        with self._state.together():
            self._state.put(job, run)
            facts = {name: getattr(job, name) for name in (*_WORDS, "generation")}
            self._journal.note("job_started", job.id, facts=facts)
        self._jobs[job.id] = job
        self._events.publish(JobChanged(job))
        return job

    def _put(self, job: JobRow, kind: str = "", facts: Mapping[str, Any] | None = None) -> None:
        with self._state.together():
            self._state.put(job)
            if kind:
                self._journal.note(kind, job.id, reason=job.reason, facts=dict(facts or {}))
            self._jobs[job.id] = job
            if is_over(job):
                self._events.publish(JobVacated(job.id))
        self._events.publish(JobChanged(job))


def _from_a_rank(facts: Mapping[str, Any], job: JobRow | None) -> dict[str, Any]:
    is_given = job is not None and job.facts.get(_GIVEN)
    names = {ATTACHED, REPLICA_OF, TOTAL} | (set() if is_given else {POLICY})
    if job is None or not is_launched(job):
        names |= {"name", "owner"}
    taken = {name: value for name, value in facts.items() if name in names}
    if ATTACHED in taken:  # of this attempt; the next one may hold all ranks
        taken[ATTACHED] = {"world": taken[ATTACHED], "attempt": job.attempt if job else 0}
    return taken


def part_of(job: JobRow) -> int | None:
    """Return how many ranks a job's program has, where not all of them are the job's own."""
    known = job.facts.get(ATTACHED)
    if not isinstance(known, dict) or known.get("attempt") != job.attempt:
        return None
    world = known.get("world")
    return world if isinstance(world, int) else None


def is_over(job: JobRow) -> bool:
    """Tell whether a job has ended."""
    return JobState(job.state).is_final


def is_released(job: JobRow) -> bool:
    """Tell whether a job was paused and has nothing left but its checkpoints."""
    return job.state == JobState.PAUSED and job.reason == lifecycle.RELEASED


def is_launched(job: JobRow) -> bool:
    """Tell whether the job has a launch process, which reports the end of its ranks."""
    return bool(job.scheduler or job.facts.get("launched"))


def has_run(job: JobRow) -> bool:
    """Tell whether there is, or was, a run of a job; one that waits has none yet."""
    return not job.facts.get(SUBMITTED) or "log_dir" in job.facts


def failure_policy(facts: Any, can_live: bool = False) -> FailurePolicy:
    """Return a job's policy for failures, as its launch process reported it.

    Without one, lost ranks are recovered live if the program can, else all ranks are restarted.
    """
    given = facts.get(POLICY) if isinstance(facts, dict) else None
    policy = FailurePolicy(LossRecovery.LIVE if can_live else LossRecovery.RESTART)
    if not isinstance(given, dict):
        return policy
    if given.get("recovery") in list(LossRecovery):
        policy = replace(policy, recovery=LossRecovery(given["recovery"]))
    if given.get("on_loss") in list(OnLoss):
        policy = replace(policy, on_loss=OnLoss(given["on_loss"]))
    if type(given.get("min_groups")) is int:
        policy = replace(policy, min_groups=given["min_groups"])
    return policy
