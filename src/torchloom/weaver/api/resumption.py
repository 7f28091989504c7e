"""Requests to pause, resume and resize: a paused job continues, an ended one is a new attempt.

`pause` with `release` has the ranks save and end, and frees their placement.
"""

import asyncio
import functools
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torchloom import accounts
from torchloom.errors import Failure, LoomError
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.records.resumption import (
    AS_IT_WAS,
    Continuation,
    NotResumable,
    newest_checkpoint,
    resized,
)
from torchloom.rules import queue
from torchloom.rules.control.command import CommandKind, Status
from torchloom.rules.queue import Need
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec_shape import job_from_dict, rearranged
from torchloom.specs.states import JobState
from torchloom.weaver import views
from torchloom.weaver.api.commands import CommandApi
from torchloom.weaver.api.queue import BadSpec
from torchloom.weaver.api.refusals import check_ranks
from torchloom.weaver.api.request import (
    BadRequest,
    JobCommandRequest,
    PauseRequest,
    ResizeRequest,
    ResumeRequest,
    job_named,
)
from torchloom.weaver.jobs import job_queue
from torchloom.weaver.jobs.coordinator import NewAttempt
from torchloom.weaver.jobs.registry import (
    RELEASING,
    RESIZING,
    RESUMED,
    WORLD_SIZE,
    is_over,
    is_released,
)
from torchloom.weaver.jobs.submissions import Unschedulable
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import CheckpointRow, JobRow

_COMMITS = 5.0  # seconds for checkpoints that ranks have written to be committed
_LOOK = 0.02
_MOST_RANKS = 100_000
PERIOD = 0.1  # seconds between two checks for jobs to resume with another size


class EndedMeanwhile(NotResumable):
    """A pause was to end, but the job has ended."""

    code = "ended_meanwhile"

    def __init__(self, job: JobRow) -> None:
        super().__init__(
            f"{job.id} is {job.state}: it is no longer paused; "
            f"`loom resume {job.id}` resumes it as a new attempt"
        )


class ResumeApi:
    """Pauses jobs, and resumes those that are paused or have ended."""

    def __init__(self, weaver: Weaver, commands: CommandApi) -> None:
        self._weaver = weaver
        self._commands = commands

    async def pause(self, asked: PauseRequest) -> dict[str, Any]:
        """Have all ranks wait at one step, or save and end there."""
        if not asked.release:
            return await self._commands.pause(asked)
        if (known := await self._commands.again(asked)) is not None:
            return await self._left(asked, known)
        job = self._commands.living(asked)
        asked = replace(asked, id=self._commands.name(asked, job))
        self._weaver.jobs.mark(job.id, {RELEASING: asked.id, RESIZING: None})
        try:
            answer = await self._commands.command(asked, job, CommandKind.STOP, {"release": True})
        except BaseException:
            self._weaver.jobs.mark(job.id, {RELEASING: None})
            raise
        return await self._left(asked, answer)

    async def _left(self, asked: JobCommandRequest, answer: dict[str, Any]) -> dict[str, Any]:
        """Wait until a job is released; return the outcome, with the checkpoint of its step."""
        await self._until(asked, lambda: not self._is_leaving(answer["job"]))
        after = self._weaver.jobs.get(answer["job"])
        step, rows = answer["effective_step"], self._weaver.checkpoint_rows
        row = rows.meant(answer["job"], step, answer["generation"]) if step is not None else None
        return {
            **answer,
            "after": after.state if after else None,
            "checkpoint": views.checkpoint_shape(row) if row else None,
        }

    async def resume(self, asked: ResumeRequest) -> dict[str, Any]:
        """End a job's pause, or resume one that was released or has ended.

        With `unpause` the client saw the job paused: if it has ended since, it is not resumed.
        """
        if known := await self._commands.again(asked):
            return known
        job = job_named(self._weaver.jobs, asked.job)
        before: dict[str, Any] = job.facts.get(RESUMED) or {}
        if before and before["id"] and before["id"] == asked.id:  # its reply was lost
            return self._answer(asked, before, job)
        if not is_over(job) and not is_released(job):
            if job.state == JobState.PAUSED:
                return await self._commands.resume(asked)
            raise NotResumable(_not_now(job))
        if is_over(job) and asked.unpause:
            raise EndedMeanwhile(job)
        wanted = continuation(asked)
        await self._weaver.reports.settled(job.id, _COMMITS)
        await self._check(job, wanted)
        question = {"id": asked.id, "state": job.state, "generation": job.generation}
        after = await self.start_attempt(job, asked.author, asked.reason, wanted, question)
        return self._answer(asked, question, after)

    async def _check(self, job: JobRow, wanted: Continuation) -> None:
        """Refuse an attempt that would start over, or has nothing to do, unless that is requested.

        A job that was never started has no progress to lose.
        """
        record = await self._weaver.aside(accounts.within, job.account, catalog.record, job.id)
        if record is None or record.started_at is None:
            return
        if job.account:  # the path of its store comes from the account and is not trusted
            rows = self._weaver.store.state.find(CheckpointRow, job=job.id, state="committed")
            newest = max((row.step for row in rows), default=None)
        else:
            newest = await self._weaver.aside(newest_checkpoint, record)
        wanted.check(job.id, job.state == JobState.COMPLETED, newest)

    async def start_attempt(
        self,
        job: JobRow,
        author: str,
        why: str,
        wanted: Continuation = AS_IT_WAS,
        question: dict[str, Any] | None = None,
    ) -> JobRow:
        """Start a new attempt of a job that has no ranks, with another number of them if given.

        `question` is stored with it, so that a repeated request is recognized.
        """
        coordinator = self._weaver.coordinator
        # A new attempt fences commits of older generations.
        await self._weaver.reports.settled(job.id, _COMMITS)
        await coordinator.nodes_for(self._need(job.id, wanted))
        before = await self._weaver.aside(accounts.within, job.account, catalog.record, job.id)
        job = self._weaver.jobs.get(job.id) or job
        if not is_over(job) and not is_released(job):
            raise NotResumable(_not_now(job))  # another request was faster
        spec = self._spec(job.id, wanted)
        if spec is None:
            await coordinator.relaunch(job, author, why, wanted)
            self._weaver.jobs.mark(job.id, {RESUMED: question})
        else:
            left = before.restarts if before is not None else -1
            coordinator.resume(job, NewAttempt(spec, author, why, left, wanted, question))
        return self._weaver.jobs.get(job.id) or job

    def _spec(self, job: str, wanted: Continuation) -> Any:
        """Return the spec to resume a job with; none for one that was not submitted."""
        submission = self._weaver.coordinator.submission(job)
        if submission is None or (wanted.ranks is None and not wanted.distributed):
            return submission.spec if submission else None
        return with_workers(submission.spec, wanted.ranks, wanted.distributed)

    def _need(self, job: str, wanted: Continuation) -> Need | None:
        spec = self._spec(job, wanted)
        return job_queue.need_of(job_from_dict(spec).resources) if spec is not None else None

    def _is_leaving(self, name: str) -> bool:
        job = self._weaver.jobs.get(name)
        return job is not None and bool(job.facts.get(RELEASING)) and not is_over(job)

    async def _until(self, asked: JobCommandRequest, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + asked.wait
        while time.monotonic() < deadline:
            if is_so():
                return
            await asyncio.sleep(_LOOK)

    def _answer(
        self, asked: ResumeRequest, before: dict[str, Any], after: JobRow
    ) -> dict[str, Any]:
        """Return the outcome in the shape of a command, as for a job with ranks."""
        now = views.when(time.time())
        return {
            "id": asked.id or uuid.uuid4().hex[:16],
            "number": 0,
            "job": after.id,
            "kind": "resume",
            "payload": {"attempt": after.attempt},
            "at": None,
            "author": asked.author,
            "reason": asked.reason,
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


def continuation(asked: ResumeRequest) -> Continuation:
    """Return how to resume a job that has ended."""
    ranks = wanted_ranks(asked.workers)
    rest = asked.from_step, asked.until, asked.from_scratch, asked.distributed
    return Continuation(ranks, *rest)


def wanted_ranks(ranks: int | None) -> int | None:
    """Return the requested number of ranks, or refuse it."""
    if ranks is not None and not 1 <= ranks <= _MOST_RANKS:
        raise BadRequest(f"workers must be 1 to {_MOST_RANKS}, not {ranks}")
    return ranks


def _not_now(job: JobRow) -> str:
    remedy = {
        JobState.QUEUED: f"it waits in the queue; `loom stop {job.id}` removes it",
        JobState.RECOVERING: "it is being restarted already",
    }.get(JobState(job.state), f"`loom show {job.id}` shows it, `loom stop {job.id}` ends it")
    return f"{job.id} is {job.state}: nothing to resume; {remedy}"


def with_workers(
    spec: Any, workers: int | None, distributed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a spec with another number of workers, strategy or mesh, or refuse it."""
    try:
        return rearranged(spec, workers, distributed)
    except SpecError as error:
        raise BadSpec(error.path, error.problem) from error


class ResizeApi:
    """Resizes jobs: the ranks save and end, then a new attempt starts with another number."""

    def __init__(self, weaver: Weaver, commands: CommandApi, resumption: ResumeApi) -> None:
        self._weaver = weaver
        self._commands = commands
        self._resumption = resumption
        self._wanted: set[str] | None = None  # jobs to check; none before the first check
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}

    async def resize(self, asked: ResizeRequest) -> dict[str, Any]:
        """Have all ranks save at one step and end, and resume there with another number."""
        if (known := await self._commands.again(asked)) is not None:
            return await self._outcome(asked, known["job"], known)
        ranks, job = wanted_ranks(asked.workers), self._commands.living(asked)
        if ranks is None:
            raise BadRequest("workers is missing: how many ranks it is to have")
        await self._check(job, ranks)
        asked = replace(asked, id=self._commands.name(asked, job))
        order = {
            "command": asked.id,
            "workers": ranks,
            "author": asked.author,
            "reason": asked.reason,
        }
        self._refused.pop(job.id, None)
        self._weaver.jobs.mark(job.id, {RELEASING: order["command"], RESIZING: order})
        self._names().add(job.id)
        payload = {"release": True, "workers": ranks}
        try:
            answer = await self._commands.command(asked, job, CommandKind.RESIZE, payload)
        except BaseException:
            self._withdraw(job.id)
            raise
        return {**await self._outcome(asked, job.id, answer), "before": self._ranks(job)}

    async def _outcome(
        self, asked: JobCommandRequest, job: str, answer: dict[str, Any]
    ) -> dict[str, Any]:
        """Wait until a job has its new ranks; return the outcome."""
        await self._resumed(asked, job)
        after = self._weaver.jobs.get(job)
        return {**answer, "after": after.state if after else None}

    def check(self) -> None:
        """Start the new attempt of every job whose ranks have ended for it."""
        for name in tuple(self._names() - self._tasks.keys()):
            job = self._weaver.jobs.get(name)
            if job is None or is_over(job) or not job.facts.get(RESIZING):
                self._names().discard(name)
            elif self._is_void(job):
                self._withdraw(name)
            elif is_released(job):
                task = asyncio.create_task(self._start(job), name=f"resize {name}")
                self._tasks[name] = task
                task.add_done_callback(functools.partial(self._done, name))

    def _names(self) -> set[str]:
        """Return the jobs that are being resized, also those of an earlier weaver."""
        if self._wanted is None:
            jobs = [job for job in self._weaver.jobs.active() if job.facts.get(RESIZING)]
            self._wanted = {job.id for job in jobs}
            for job in jobs:
                if self._status(job) is None:  # that weaver sent no command
                    self._withdraw(job.id)
        return self._wanted

    def _is_void(self, job: JobRow) -> bool:
        """Tell whether the ranks do not end for it: the command was refused or aborted."""
        status = self._status(job)
        return status is not None and status.is_final and status is not Status.APPLIED

    def _status(self, job: JobRow) -> Status | None:
        return self._weaver.commands.status(job.id, job.facts[RESIZING]["command"])

    def _withdraw(self, job: str) -> None:
        self._weaver.jobs.mark(job, {RELEASING: None, RESIZING: None})

    async def _start(self, job: JobRow) -> None:
        order = job.facts[RESIZING]
        try:
            await self._resumption.start_attempt(
                job, order["author"], order["reason"], Continuation(order["workers"])
            )
        except LoomError as error:  # it stays paused
            self._refused[job.id] = str(error)
            self._weaver.journal.note("resize_refused", job.id, reason=str(error), facts=order)
        self._weaver.jobs.mark(job.id, {RESIZING: None})

    def _done(self, job: str, task: asyncio.Task[None]) -> None:
        del self._tasks[job]
        if not task.cancelled() and (error := task.exception()):
            self._weaver.tasks.fail(error)

    async def _check(self, job: JobRow, ranks: int) -> None:
        """Refuse a size that the job cannot have, before its ranks end."""
        check_ranks(job, self._ranks(job), ranks)
        submission = self._weaver.coordinator.submission(job.id)
        if submission is None:
            request = await self._weaver.aside(_request, job)
            resized(request, ranks)
            return
        spec = job_from_dict(with_workers(submission.spec, ranks))
        need = job_queue.need_of(spec.resources)
        await self._weaver.coordinator.nodes_for(need)
        nodes = self._weaver.coordinator.queue.state.nodes
        if lacking := queue.shortage(need, nodes):
            raise Unschedulable(lacking)

    async def _resumed(self, asked: JobCommandRequest, job: str) -> None:
        deadline = time.monotonic() + asked.wait
        while time.monotonic() < deadline:
            known = self._weaver.jobs.get(job)
            if known is None or is_over(known) or not known.facts.get(RESIZING):
                break
            await asyncio.sleep(_LOOK)
        if why := self._refused.pop(job, ""):
            raise Failure(f"{job} has saved and waits: {why}; `loom resume {job}` resumes it")

    def _ranks(self, job: JobRow) -> int | None:
        return len(self._weaver.roster.ranks(job.id)) or job.facts.get(WORLD_SIZE)


def _request(job: JobRow) -> LaunchRequest:
    """Return how a job's run was launched, read as its account."""
    return accounts.within(job.account, lambda: RunFolder.named(job.id).request())
