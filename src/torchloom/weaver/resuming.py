"""Answers at the door about going on: a paused job at its next step, an ended one as a new attempt.

`pause` with `release` is the other half: the ranks save and end, and what they had is given back.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

from torchloom import accounts
from torchloom.launch.records import catalog
from torchloom.launch.records.resumption import (
    AS_IT_WAS,
    Continuation,
    NotResumable,
    newest_checkpoint,
)
from torchloom.rules.command import Kind
from torchloom.rules.placement import Need
from torchloom.specs.exceptions import SpecError
from torchloom.specs.job import JobState
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.weaver import queueing, shapes
from torchloom.weaver.acting import Acting
from torchloom.weaver.coordinator import Again
from torchloom.weaver.jobs import RELEASING, RESIZING, RESUMED, is_over, is_released
from torchloom.weaver.naming import job_named
from torchloom.weaver.question import BadQuestion, Question
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import Checkpoint, Job
from torchloom.weaver.submitting import BadSpec

_PATIENCE, _MOST = 30.0, 3600.0  # seconds to wait for an outcome
_COMMITS = 5.0  # seconds for checkpoints that ranks have written to be committed
_LOOK = 0.02
_MOST_RANKS = 100_000


class EndedMeanwhile(NotResumable):
    """A pause was to be lifted, and the job has ended."""

    code = "ended_meanwhile"

    def __init__(self, job: Job) -> None:
        super().__init__(
            f"{job.id} is {job.state}: there is no pause to lift any more; "
            f"`loom resume {job.id}` resumes it as a new attempt"
        )


class Resuming:
    """What a job that does not train can be told."""

    def __init__(self, weaver: Weaver, acting: Acting) -> None:
        self._weaver = weaver
        self._acting = acting

    async def pause(self, asked: Question) -> dict[str, Any]:
        """Have all ranks wait at one step, or save and leave there with all they have."""
        if not asked.flag("release"):
            return await self._acting.pause(asked)
        if (known := await self._acting.again(asked)) is not None:
            return await self._left(asked, known)
        job = self._acting.living(asked)
        asked = asked.named(self._acting.name(asked, job))
        self._weaver.jobs.mark(job.id, {RELEASING: asked.text("id"), RESIZING: None})
        try:
            answer = await self._acting.command(asked, job, Kind.STOP, {"release": True})
        except BaseException:
            self._weaver.jobs.mark(job.id, {RELEASING: None})
            raise
        return await self._left(asked, answer)

    async def _left(self, asked: Question, answer: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a job whose ranks were told to leave, once they have."""
        await self._until(asked, lambda: not self._is_leaving(answer["job"]))
        after = self._weaver.jobs.get(answer["job"])
        return {**answer, "after": after.state if after else None}

    async def resume(self, asked: Question) -> dict[str, Any]:
        """Lift a job's pause, or resume one that was released or has ended.

        `unpause` is said by who saw the job paused: an end meanwhile is no wish for a new attempt.
        """
        if known := await self._acting.again(asked):
            return known
        job = job_named(self._weaver.jobs, asked.text("job"))
        before: dict[str, Any] = job.facts.get(RESUMED) or {}
        if before and before["id"] and before["id"] == asked.text("id"):  # its answer was lost
            return self._answer(asked, before, job)
        if not is_over(job) and not is_released(job):
            if job.state == JobState.PAUSED:
                return await self._acting.resume(asked)
            raise NotResumable(_not_now(job))
        if is_over(job) and asked.flag("unpause"):
            raise EndedMeanwhile(job)
        wanted = continuation(asked)
        await self._commits(job.id)
        await self._check(job, wanted)
        question = {"id": asked.text("id"), "state": job.state, "generation": job.generation}
        author, reason = self._acting.author(asked), asked.text("reason")
        after = await self.go_on(job, author, reason, wanted, question)
        return self._answer(asked, question, after)

    async def _check(self, job: Job, wanted: Continuation) -> None:
        """Refuse a new attempt of which it was not said that it may start over, or how far to go.

        A job that was never started has nothing to lose.
        """
        record = await self._weaver.aside(accounts.within, job.account, catalog.record, job.id)
        if record is None or record.started_at is None:
            return
        if job.account:  # where its store is said to be is that account's word
            rows = self._weaver.store.state.find(Checkpoint, job=job.id, state="committed")
            newest = max((row.step for row in rows), default=None)
        else:
            newest = await self._weaver.aside(newest_checkpoint, record)
        wanted.check(job.id, job.state == JobState.COMPLETED, newest)

    async def go_on(
        self,
        job: Job,
        author: str,
        why: str,
        wanted: Continuation = AS_IT_WAS,
        question: dict[str, Any] | None = None,
    ) -> Job:
        """Have a job that has no ranks go on as a new attempt, with so many if that is said.

        `question` is stored with it, so that the same question, asked again, is known.
        """
        coordinator = self._weaver.coordinator
        await self._commits(job.id)
        await coordinator.nodes_for(self._need(job.id, wanted.ranks))
        before = await self._weaver.aside(accounts.within, job.account, catalog.record, job.id)
        job = self._weaver.jobs.get(job.id) or job
        if not is_over(job) and not is_released(job):
            raise NotResumable(_not_now(job))  # somebody was faster
        spec = self._spec(job.id, wanted.ranks)
        if spec is None:
            await coordinator.relaunch(job, author, why, wanted)
            self._weaver.jobs.mark(job.id, {RESUMED: question})
        else:
            left = before.restarts if before is not None else -1
            coordinator.resume(job, Again(spec, author, why, left, wanted, question))
        return self._weaver.jobs.get(job.id) or job

    def _spec(self, job: str, ranks: int | None) -> Any:
        """Return a job of the queue as it is to go on; nothing for one that came another way."""
        submission = self._weaver.coordinator.submission(job)
        if submission is None or ranks is None:
            return submission.spec if submission else None
        return with_workers(submission.spec, ranks)

    def _need(self, job: str, ranks: int | None) -> Need | None:
        spec = self._spec(job, ranks)
        return queueing.need_of(job_from_dict(spec).resources) if spec is not None else None

    async def _commits(self, job: str) -> None:
        """Let what the ranks wrote last become a checkpoint before nobody older may commit."""
        deadline = time.monotonic() + _COMMITS
        while time.monotonic() < deadline:
            if not any(row.job == job for row in self._weaver.shelf.open()):
                return
            await asyncio.sleep(_LOOK)

    def _is_leaving(self, name: str) -> bool:
        job = self._weaver.jobs.get(name)
        return job is not None and bool(job.facts.get(RELEASING)) and not is_over(job)

    async def _until(self, asked: Question, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + asked.seconds("wait", _PATIENCE, _MOST)
        while time.monotonic() < deadline:
            if is_so():
                return
            await asyncio.sleep(_LOOK)

    def _answer(self, asked: Question, before: dict[str, Any], after: Job) -> dict[str, Any]:
        """Return what was done in the shape of a command, which it would be while ranks live."""
        now = shapes.when(time.time())
        return {
            "id": asked.text("id") or uuid.uuid4().hex[:16],
            "number": 0,
            "job": after.id,
            "kind": "resume",
            "payload": {"attempt": after.attempt},
            "at": None,
            "author": self._acting.author(asked),
            "reason": asked.text("reason"),
            "asked_at": now,
            "state": "applied",
            "generation": before["generation"] + 1,
            "effective_step": None,
            "before": before["state"],
            "after": after.state,
            "outcome": "",
            "ended_at": now,
            "ranks": [],
            "guard": None,
        }


def continuation(asked: Question) -> Continuation:
    """Return how a job that has ended is to be resumed."""
    step, until = asked.number("from_step"), asked.number("until")
    return Continuation(wanted_ranks(asked), step, until, asked.flag("from_scratch"))


def wanted_ranks(asked: Question) -> int | None:
    """Return how many ranks a job is to have, if that is said."""
    ranks = asked.number("workers")
    if ranks is not None and not 1 <= ranks <= _MOST_RANKS:
        raise BadQuestion(f"workers must be 1 to {_MOST_RANKS}, not {ranks}")
    return ranks


def _not_now(job: Job) -> str:
    remedy = {
        JobState.QUEUED: f"it waits for its turn; `loom stop {job.id}` takes it out",
        JobState.RECOVERING: "it is being started again already",
    }.get(JobState(job.state), f"`loom show {job.id}` shows it, `loom stop {job.id}` ends it")
    return f"{job.id} is {job.state}: nothing to resume; {remedy}"


def with_workers(spec: Any, workers: int) -> dict[str, Any]:
    """Return a job with another number of workers, if it can have that."""
    changed = {**spec, "resources": {**(spec.get("resources") or {}), "workers": workers}}
    try:
        job_from_dict(changed)
    except SpecError as error:
        raise BadSpec(error.path, error.problem) from error
    return changed
