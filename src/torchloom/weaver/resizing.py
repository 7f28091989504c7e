"""Answer at the door about another number of ranks: all save and end, and so many go on from there.

What is wanted is stored with the job before anything is done: whichever weaver sees the job without
ranks goes on with it.
"""

import asyncio
import functools
import time
from typing import Any

from torchloom import accounts
from torchloom.errors import Failure, LoomError
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.records.resumption import Continuation, resized
from torchloom.rules import placement
from torchloom.rules.command import Kind, Status
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.weaver import queueing
from torchloom.weaver.acting import Acting
from torchloom.weaver.jobs import (
    RELEASING,
    RESIZING,
    WORLD_SIZE,
    is_over,
    is_released,
)
from torchloom.weaver.question import BadQuestion, Question
from torchloom.weaver.refusals import check_ranks
from torchloom.weaver.resuming import Resuming, wanted_ranks, with_workers
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import Job
from torchloom.weaver.submissions import Unschedulable

PERIOD = 0.1  # seconds between two looks for jobs that are to go on
_PATIENCE, _MOST = 30.0, 3600.0  # seconds to wait until one does
_LOOK = 0.02


class Resizing:
    """Jobs that are to go on with more ranks, or with fewer."""

    def __init__(self, weaver: Weaver, acting: Acting, resuming: Resuming) -> None:
        self._weaver = weaver
        self._acting = acting
        self._resuming = resuming
        self._wanted: set[str] | None = None  # jobs to look at; nobody has looked yet
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}

    async def resize(self, asked: Question) -> dict[str, Any]:
        """Have all ranks save at one step and end, and so many others go on at it."""
        if (known := await self._acting.again(asked)) is not None:
            return await self._outcome(asked, known["job"], known)
        ranks, job = wanted_ranks(asked), self._acting.living(asked)
        if ranks is None:
            raise BadQuestion("workers is missing: how many ranks it is to have")
        await self._check(job, ranks)
        asked = asked.named(self._acting.name(asked, job))
        wish = {
            "command": asked.text("id"),
            "workers": ranks,
            "author": self._acting.author(asked),
            "reason": asked.text("reason"),
        }
        self._refused.pop(job.id, None)
        self._weaver.jobs.mark(job.id, {RELEASING: wish["command"], RESIZING: wish})
        self._names().add(job.id)
        payload = {"release": True, "workers": ranks}
        try:
            answer = await self._acting.command(asked, job, Kind.RESIZE, payload)
        except BaseException:
            self._let_go(job.id)
            raise
        return {**await self._outcome(asked, job.id, answer), "before": self._ranks(job)}

    async def _outcome(self, asked: Question, job: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a job, once it has others."""
        await self._gone_on(asked, job)
        after = self._weaver.jobs.get(job)
        return {**answer, "after": after.state if after else None}

    def look(self) -> None:
        """Have every job go on that has no ranks now and was to have others."""
        for name in tuple(self._names() - self._tasks.keys()):
            job = self._weaver.jobs.get(name)
            if job is None or is_over(job) or not job.facts.get(RESIZING):
                self._names().discard(name)
            elif self._is_void(job):
                self._let_go(name)
            elif is_released(job):
                task = asyncio.create_task(self._go_on(job), name=f"resize {name}")
                self._tasks[name] = task
                task.add_done_callback(functools.partial(self._done, name))

    def _names(self) -> set[str]:
        """Return the jobs that are to be resized; first of all those of the weaver before."""
        if self._wanted is None:
            jobs = [job for job in self._weaver.jobs.active() if job.facts.get(RESIZING)]
            self._wanted = {job.id for job in jobs}
            for job in jobs:
                if self._status(job) is None:  # that weaver came no further than the wish
                    self._let_go(job.id)
        return self._wanted

    def _is_void(self, job: Job) -> bool:
        """Tell whether the ranks will not end for it: they could not, or somebody was before it."""
        status = self._status(job)
        return status is not None and status.is_final and status is not Status.APPLIED

    def _status(self, job: Job) -> Status | None:
        return self._weaver.commands.status(job.id, job.facts[RESIZING]["command"])

    def _let_go(self, job: str) -> None:
        self._weaver.jobs.mark(job, {RELEASING: None, RESIZING: None})

    async def _go_on(self, job: Job) -> None:
        wish = job.facts[RESIZING]
        try:
            await self._resuming.go_on(
                job, wish["author"], wish["reason"], Continuation(wish["workers"])
            )
        except LoomError as error:  # it stays paused: nothing is lost
            self._refused[job.id] = str(error)
            self._weaver.journal.note("resize_refused", job.id, reason=str(error), facts=wish)
        self._weaver.jobs.mark(job.id, {RESIZING: None})

    def _done(self, job: str, task: asyncio.Task[None]) -> None:
        del self._tasks[job]
        if not task.cancelled() and (error := task.exception()):
            self._weaver.fail(error)

    async def _check(self, job: Job, ranks: int) -> None:
        """Refuse what could not go on before anything of it ends."""
        check_ranks(job, self._ranks(job), ranks)
        submission = self._weaver.coordinator.submission(job.id)
        if submission is None:
            request = await self._weaver.aside(_request, job)
            resized(request, ranks)
            return
        spec = job_from_dict(with_workers(submission.spec, ranks))
        need = queueing.need_of(spec.resources)
        await self._weaver.coordinator.nodes_for(need)
        nodes = self._weaver.coordinator.turns.queue.nodes
        if lacking := placement.shortage(need, nodes):
            raise Unschedulable(lacking)

    async def _gone_on(self, asked: Question, job: str) -> None:
        deadline = time.monotonic() + asked.seconds("wait", _PATIENCE, _MOST)
        while time.monotonic() < deadline:
            known = self._weaver.jobs.get(job)
            if known is None or is_over(known) or not known.facts.get(RESIZING):
                break
            await asyncio.sleep(_LOOK)
        if why := self._refused.pop(job, ""):
            raise Failure(f"{job} has saved and waits: {why}; `loom resume {job}` resumes it")

    def _ranks(self, job: Job) -> int | None:
        return len(self._weaver.roster.ranks(job.id)) or job.facts.get(WORLD_SIZE)


def _request(job: Job) -> LaunchRequest:
    """Return how a job's run was launched, read with the rights of its account."""
    return accounts.within(job.account, lambda: RunFolder.named(job.id).request())
