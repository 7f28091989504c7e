"""Store submitted jobs, many in one transaction; each is stored before its client is answered."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torchloom.errors import UserError
from torchloom.rules import queue
from torchloom.rules.queue import Need
from torchloom.runner.api import SESSION
from torchloom.schedulers.local_request import make_unique
from torchloom.specs.api import make_app_handle
from torchloom.specs.jobspec import JobSpec
from torchloom.weaver.events import BackgroundTasks, Journal
from torchloom.weaver.jobs import job_queue
from torchloom.weaver.jobs.job_queue import JobQueue
from torchloom.weaver.jobs.registry import SHELL, SUBMITTED, WORLD_SIZE, JobRegistry
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Fact, JobRow, SubmissionRow

TOGETHER = 256  # submissions of one transaction, and so the most of a batch


class Unschedulable(UserError):
    """No node, nor all of them together, could ever run this."""

    code = "unschedulable"


class KeyReused(UserError):
    """The same idempotency key came with another job."""

    code = "key_reused"

    def __init__(self, key: str, job: str) -> None:
        super().__init__(f"the key {key!r} was used for job {job}, another one; choose a new key")


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """A job that a client submits."""

    spec: JobSpec
    plain: Any  # the spec as it was sent
    owner: str
    author: str = ""
    key: str = ""
    cwd: str = ""
    python: str = ""
    shell: Any = None  # the leader of the session that submits it, a process
    account: str = ""  # the unix account that it is to run as; none: the plane's own user

    @property
    def need(self) -> Need:
        return job_queue.need_of(self.spec.resources)


Outcome = tuple[JobRow, bool] | UserError  # a job and whether it is new, or why there is none
Answer = asyncio.Future[tuple[JobRow, bool]]
Keys = dict[tuple[str, str], SubmissionRow]


class Submissions:
    """Stores submissions that arrive at one time together, and answers them after that."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        journal: Journal,
        queue: JobQueue,
        tasks: BackgroundTasks,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._journal = journal
        self._queue = queue
        self._tasks = tasks
        self._now = now
        self._wanted: dict[Answer, SubmissionRequest] = {}
        self._working: asyncio.Task[None] | None = None

    async def add(self, wanted: SubmissionRequest) -> tuple[JobRow, bool]:
        """Store a job; return it, and whether it is new."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._wanted[answer] = wanted
        if self._working is None or self._working.done():
            self._working = self._tasks.start(self._store_soon(), "submissions")
        return await answer

    async def add_all(self, batch: Sequence[SubmissionRequest]) -> list[Outcome]:
        """Store jobs in one transaction; return the outcome of each, in their order.

        A refused job does not affect the others.
        """
        await asyncio.sleep(0)  # not within the caller's transaction
        return self._admit_all(batch)

    def close(self) -> None:
        if self._working is not None:
            self._working.cancel()

    async def _store_soon(self) -> None:
        await asyncio.sleep(0)  # what arrives by now is stored in the same transaction
        while self._wanted:
            self._store_group()
            await asyncio.sleep(0)

    def _store_group(self) -> None:
        answers = list(islice(self._wanted, TOGETHER))
        group = {answer: self._wanted.pop(answer) for answer in answers}
        try:
            outcomes = self._admit_all(list(group.values()))
        except BaseException as error:
            for answer in group:
                _resolve(answer, error)
            raise
        for answer, outcome in zip(group, outcomes, strict=True):
            _resolve(answer, outcome)

    def _admit_all(self, group: Sequence[SubmissionRequest]) -> list[Outcome]:
        """Store a group in one transaction, then start the jobs that were placed."""
        effects: list[queue.Effect] = []
        with self._state.together():
            keys = self._by_key(group)
            outcomes = [self._admit(wanted, keys, effects) for wanted in group]
            self._state.put(Fact(job_queue.COUNT, self._queue.state.submitted))
        self._queue.act(effects)
        return outcomes

    def _by_key(self, group: Iterable[SubmissionRequest]) -> Keys:
        """Return what was submitted before under the keys of a group."""
        keys = {wanted.key for wanted in group if wanted.key}
        found = self._state.find(SubmissionRow, key=keys) if keys else []
        return {(row.owner, row.key): row for row in found}

    def _admit(self, wanted: SubmissionRequest, keys: Keys, effects: list[queue.Effect]) -> Outcome:
        """Store one job and the placements that follow, or return why it is refused."""
        before = keys.get((wanted.owner, wanted.key)) if wanted.key else None
        if before is not None:
            return self._again(wanted, before)
        name = make_unique(wanted.spec.name)
        event = queue.JobSubmitted(name, wanted.owner, wanted.need, wanted.spec.priority)
        done = self._queue.decide(event)
        for effect in done:
            if isinstance(effect, queue.Refuse):
                return Unschedulable(effect.reason)
        keys[wanted.owner, wanted.key] = self._store(name, wanted)
        self._queue.store(done)
        effects += done
        job = self._jobs.get(name)
        assert job is not None
        return job, True

    def _again(self, wanted: SubmissionRequest, before: SubmissionRow) -> Outcome:
        job = self._jobs.get(before.job)
        if job is None or job_queue.spec_of(before) != wanted.spec:
            return KeyReused(wanted.key, before.job)
        return job, False

    def _store(self, name: str, wanted: SubmissionRequest) -> SubmissionRow:
        spec, number = wanted.spec, self._queue.state.submitted
        row = SubmissionRow(
            job=name,
            number=number,
            owner=wanted.owner,
            priority=spec.priority,
            spec=wanted.plain,
            key=wanted.key,
            cwd=wanted.cwd,
            python=wanted.python,
            author=wanted.author,
            submitted_at=self._now(),
        )
        self._state.put(row)
        self._jobs.submit(_job(name, wanted))
        facts = {"owner": wanted.owner, "number": number, "priority": spec.priority}
        self._journal.note("submitted", name, author=wanted.author, facts=facts)
        return row


def _job(name: str, wanted: SubmissionRequest) -> JobRow:
    spec, shell = wanted.spec, {SHELL: wanted.shell} if wanted.shell else {}
    return JobRow(
        name,
        name=spec.name,
        owner=wanted.owner,
        scheduler=spec.scheduler,
        handle=make_app_handle(spec.scheduler, SESSION, name),
        reason="submitted",
        run_id=name,
        facts={SUBMITTED: True, WORLD_SIZE: spec.resources.workers, **shell},
        account=wanted.account,
    )


def _resolve(answer: Answer, outcome: Outcome | BaseException) -> None:
    if answer.done():
        return  # the client is gone
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
