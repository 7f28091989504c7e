"""Requests about the queue: submit, cancel, list, quotas, and the nodes of the cluster."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any

from torchloom.errors import LoomError, NotFound, UserError
from torchloom.rules.queue import NodeCapacity
from torchloom.schedulers import LOCAL
from torchloom.sealed import HIDDEN, LONGEST, SEALED, SECRET, seal_in_spec
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.states import JobState
from torchloom.weaver import views
from torchloom.weaver.api.queries import QueryApi
from torchloom.weaver.api.refusals import JobMoved, JobOver, refusal
from torchloom.weaver.api.request import (
    BadRequest,
    CancelJobRequest,
    CancelManyRequest,
    SetQuotaRequest,
    SubmitManyRequest,
    SubmitRequest,
    WeaverRequest,
    job_named,
)
from torchloom.weaver.jobs import job_queue
from torchloom.weaver.jobs.registry import WORLD_SIZE, is_over
from torchloom.weaver.jobs.submissions import TOGETHER, Outcome, SubmissionRequest
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import StateLost
from torchloom.weaver.store.rows import JobRow, RankProcessRow

_LONGEST_KEY = 200
_MOST_WORKERS = 1 << 31
_COMMON = ("owner", "author", "cwd", "python", "shell")  # defaults of a batch for its items
MOST_CANCELLED = 5000  # jobs that one request cancels
ACTIVE = frozenset(str(state) for state in JobState if not state.is_final)


class BadSpec(UserError):
    """A job spec is invalid; `field` is where, `remedy` what to do."""

    code = "bad_spec"

    def __init__(self, field: str, remedy: str) -> None:
        self.field = field
        self.remedy = remedy
        super().__init__(f"{field}: {remedy}" if field else remedy)


class QueueApi:
    """Submits and cancels jobs, and shows the queue and the cluster."""

    def __init__(self, weaver: Weaver, queries: QueryApi) -> None:
        self._jobs = weaver.jobs
        self._roster = weaver.roster
        self._heartbeats = weaver.heartbeats
        self._coordinator = weaver.coordinator
        self._queue = weaver.coordinator.queue
        self._queries = queries
        self._users = weaver.users

    async def submit(self, asked: SubmitRequest) -> dict[str, Any]:
        """Store a job in the queue."""
        wanted = self._wanted(asked)
        return _submitted(wanted, *await self._coordinator.submit(wanted))

    async def submit_many(self, asked: SubmitManyRequest) -> list[dict[str, Any]]:
        """Store jobs in one transaction; return the outcome of each, in their order.

        An item has the fields of `submit`; some have defaults in the request.
        """
        batch = [self._item(asked, item) for item in _items(asked.items)]
        good = [wanted for wanted in batch if isinstance(wanted, SubmissionRequest)]
        outcomes = iter(await self._coordinator.submit_all(good))
        return [
            _result(one, next(outcomes) if isinstance(one, SubmissionRequest) else one)
            for one in batch
        ]

    def _wanted(self, asked: SubmitRequest) -> SubmissionRequest:
        """Return the job to submit, with the account of its user."""
        account = self._users.account(asked.user) if asked.user else ""
        return replace(_wanted(asked), account=account)

    def _item(self, asked: SubmitManyRequest, item: object) -> SubmissionRequest | UserError:
        """Return one job of a batch, or why it is refused."""
        if not isinstance(item, dict):
            return BadSpec("", "an item must be an object with a `spec`")
        try:
            common = {name: getattr(asked, name) for name in _COMMON}
            return self._wanted(SubmitRequest.read({**common, **item, "user": asked.user}))
        except UserError as error:
            return error

    async def cancel(self, asked: CancelJobRequest) -> dict[str, Any]:
        """Cancel a job: a waiting one leaves the queue, a running one is ended at once."""
        job = job_named(self._jobs, asked.job)
        if is_over(job):
            raise JobOver(job)
        job = await self._coordinator.cancel(job, asked.author, asked.reason)
        return self._queries.shape(job)

    async def cancel_many(self, asked: CancelManyRequest) -> dict[str, Any]:
        """Cancel jobs by id, or all of some states; return the outcome of each, and the rest.

        Waiting jobs leave the queue from its end, many in one transaction, so that none of them
        is started in the place of another.
        """
        author, reason, states = asked.author, asked.reason, asked.states
        names, left = self._meant(asked)
        done: dict[str, JobRow | LoomError] = {}
        waiting = [one.job for one in reversed(self._queue.state.order()) if one.job in names]
        for begin in range(0, len(waiting), TOGETHER):
            still = [job for job in waiting[begin : begin + TOGETHER] if self._waits(job)]
            jobs = [job for name in still if (job := self._jobs.get(name))]
            done |= {job.id: job for job in self._coordinator.leave_queue(jobs, author, reason)}
            await asyncio.sleep(0)  # other requests are handled in between
        rest = [name for name in names if name not in done]
        ends = await asyncio.gather(*(self._end(name, states, author, reason) for name in rest))
        done |= dict(zip(rest, ends, strict=True))
        return {"items": [self._ended(name, done[name]) for name in names], "left": left}

    def _meant(self, asked: CancelManyRequest) -> tuple[dict[str, None], int]:
        """Return the ids of the jobs to cancel, and how many more there are."""
        names, states, owner = asked.jobs, asked.states, asked.owner
        if names is not None:
            if len(names) > MOST_CANCELLED:
                raise BadRequest(f"jobs has at most {MOST_CANCELLED} ids, not {len(names)}")
            return dict.fromkeys(names), 0
        if not states or not ACTIVE.issuperset(states):
            raise BadRequest(f"name `jobs` by id, or `states` of {', '.join(sorted(ACTIVE))}")
        found = [job for job in self._jobs.active() if job.state in states]
        ids = [job.id for job in found if not owner or job.owner == owner]
        return dict.fromkeys(ids[:MOST_CANCELLED]), len(ids[MOST_CANCELLED:])

    def _waits(self, name: str) -> bool:
        return name in self._queue.state.waiting

    async def _end(
        self, name: str, states: Collection[str] | None, author: str, reason: str
    ) -> JobRow | LoomError:
        """Cancel one job that has a run, or return why it is left alone."""
        job = self._jobs.get(name)
        if job is None:
            return NotFound("job", name, ())
        if is_over(job):
            return JobOver(job)
        if states and job.state not in states:
            return JobMoved(job)
        try:
            return await self._coordinator.cancel(job, author, reason)
        except StateLost:
            raise
        except LoomError as error:
            return error

    def _ended(self, name: str, outcome: JobRow | LoomError) -> dict[str, Any]:
        if isinstance(outcome, LoomError):
            return {"job": name, **refusal(outcome)}
        return {"job": name, "ok": self._queries.shape(outcome)}

    async def queue(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        """Return the waiting jobs in their order, with what each waits for."""
        state = self._queue.state
        return [
            {
                "job": job,
                "owner": state.waiting[job].owner,
                "priority": state.waiting[job].priority,
                "position": position,
                "need": asdict(state.waiting[job].need),
                "why": why,
            }
            for position, (job, why) in enumerate(self._queue.why().items(), 1)
        ]

    async def cluster(self, asked: WeaverRequest) -> dict[str, Any]:
        """Return the nodes, what each has, what is free, and which jobs use the rest.

        A job that was not submitted to the queue uses a core for each rank, and the ranks' GPUs.
        """
        placed = self._queue.state.placed
        others = self._others()
        nodes = []
        for name, (offer, free) in self._coordinator.nodes.all().items():
            here = [one for one in others if name == one.agent or one.node == offer.host]
            jobs = dict.fromkeys((*job_queue.used_by(placed, name), *(one.job for one in here)))
            nodes.append(
                {
                    "id": name,
                    "host": offer.host,
                    "state": "up",
                    "cpus": offer.cpus,
                    "memory_mb": offer.memory_mb,
                    "gpus": list(offer.gpus),
                    "free": _capacity_shape(_left(free, here)),
                    "jobs": list(jobs),
                }
            )
        present = self._heartbeats.present
        last = {name: views.when(there.heartbeat_at) for name, there in present.items()}
        return {"nodes": [*nodes, *self._lost(set(self._queue.state.nodes))], "heard": last}

    async def quota(self, asked: SetQuotaRequest) -> dict[str, Any]:
        """Set how many workers an owner may have at once; null removes the limit."""
        owner, workers = asked.owner, asked.workers
        if workers is not None and not 0 <= workers < _MOST_WORKERS:
            raise BadRequest(f"workers must be 0 or more, not {workers}; null is no limit")
        self._coordinator.set_quota(owner, workers, asked.author)
        return self._quota(owner)

    async def quotas(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        """Return the quotas and what is used of them."""
        return [self._quota(owner) for owner in sorted(self._queue.state.quotas)]

    def _quota(self, owner: str) -> dict[str, Any]:
        state = self._queue.state
        limit = state.quotas.get(owner)
        return {"owner": owner, "workers": limit, "used": state.workers_of(owner)}

    def _others(self) -> list[RankProcessRow]:
        """Return the ranks of jobs that the queue has not placed; for a job whose ranks do not
        report, as many as its launch process has started."""
        placed = self._queue.state.placed
        found = [rank for rank in self._roster.living() if rank.job not in placed]
        reporting = {rank.job for rank in found}
        for job in self._jobs.active():
            if job.state == JobState.RUNNING and job.id not in {*placed, *reporting}:
                count, host = job.facts.get(WORLD_SIZE) or 0, str(job.facts.get("host", ""))
                found += [
                    RankProcessRow(job.id, "", rank, 0, "", node=host) for rank in range(count)
                ]
        return found

    def _lost(self, there: set[str]) -> list[dict[str, Any]]:
        """Return the nodes that are lost and have jobs."""
        placed = self._queue.state.placed
        names = {share.node for one in placed.values() for share in one.shares} - there
        return [
            {
                "id": name,
                "host": agent.host if (agent := self._roster.agent(name)) else name,
                "state": "lost",
                "cpus": 0,
                "memory_mb": 0,
                "gpus": [],
                "free": _capacity_shape(NodeCapacity(0)),
                "jobs": job_queue.used_by(placed, name),
            }
            for name in sorted(names)
        ]


def _wanted(asked: SubmitRequest) -> SubmissionRequest:
    _spec(asked.spec)
    if len(asked.key) > _LONGEST_KEY:
        raise BadRequest(f"a key has at most {_LONGEST_KEY} characters, not {len(asked.key)}")
    plain = seal_in_spec(asked.spec)
    return SubmissionRequest(
        spec=_spec(plain, is_sealed=True),
        plain=plain,
        owner=asked.owner or asked.author,
        author=asked.author,
        key=asked.key,
        cwd=asked.cwd,
        python=asked.python,
        shell=asked.shell,
    )


def _submitted(wanted: SubmissionRequest, job: JobRow, is_new: bool) -> dict[str, Any]:
    workers = wanted.spec.resources.workers  # why it waits is not computed here: that takes longer
    return {**views.job_shape(job, job.step, workers), "created": is_new}


def _items(items: Any) -> list[Any]:
    if not isinstance(items, list) or not 0 < len(items) <= TOGETHER:
        raise BadRequest(f"items must be a list of 1 to {TOGETHER} jobs")
    return items


def _result(wanted: SubmissionRequest | UserError, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of one job of a batch, as `submit` would reply."""
    if isinstance(outcome, UserError):
        return refusal(outcome)
    assert isinstance(wanted, SubmissionRequest)
    return {"ok": _submitted(wanted, *outcome)}


def _spec(plain: object, is_sealed: bool = False) -> JobSpec:
    try:
        spec = job_from_dict(plain)
    except SpecError as error:
        raise BadSpec(error.path, error.problem) from error
    if spec.scheduler not in LOCAL:
        there = f"the queue has nodes of its own: {LOCAL[0]}, or `loom run -s {spec.scheduler}`"
        raise BadSpec("scheduler", there)
    for name, value in () if is_sealed else spec.env.items():
        is_long = value.startswith(SECRET) and len(value) > LONGEST
        if is_long or value.startswith(SEALED) or value in (SECRET, HIDDEN):
            remedy = f"write the value itself, {SECRET}VALUE, of at most {LONGEST} characters"
            raise BadSpec(f"env.{name}", remedy)
    return spec


def _capacity_shape(each: NodeCapacity) -> dict[str, Any]:
    return {"cpus": each.cpus, "memory_mb": each.memory_mb, "gpus": list(each.gpus)}


def _left(free: NodeCapacity, ranks: Iterable[RankProcessRow]) -> NodeCapacity:
    """Return a capacity without what ranks use."""
    there = list(ranks)
    used = {uuid for rank in there for uuid in rank.devices}
    gpus = tuple(uuid for uuid in free.gpus if uuid not in used)
    return replace(free, cpus=max(0, free.cpus - len(there)), gpus=gpus)
