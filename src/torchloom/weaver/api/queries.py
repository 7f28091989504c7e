"""Requests that only read."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torchloom.sealed import hide_in_spec
from torchloom.specs.states import JobState
from torchloom.weaver import views
from torchloom.weaver.api.request import (
    BadRequest,
    CompareRunsRequest,
    CurvesRequest,
    EventsRequest,
    JobRequest,
    JobsRequest,
    KnobsRequest,
    MetricsRequest,
    RunRequest,
    RunsRequest,
    WeaverRequest,
    job_named,
)
from torchloom.weaver.commands.rows import InForce, knobs_of
from torchloom.weaver.health.hangs import role_shape
from torchloom.weaver.jobs.registry import WORLD_SIZE, has_run, is_launched, is_over, is_released
from torchloom.weaver.runs import comparison
from torchloom.weaver.runs import search as runs
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import RecordStore
from torchloom.weaver.store.rows import EventRow, JobRow, PointRow, RankProcessRow, RunRow
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.points import PointBuckets
from torchloom.weaver.store.series.tables import RecordsLost
from torchloom.weaver.views import events_since

_MOST_EVENTS = 1000  # events of a job that are searched
_NO_METRICS = "its metrics are not stored now, see `loom doctor`"
_LOOK = 0.05  # seconds between two checks for a job's first knobs


class StackApi:
    """Stacks of the ranks of a job."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def stacks(self, asked: JobRequest) -> dict[str, Any]:
        """Return the stacks of every rank and the verdict, by role; taken now if the job runs."""
        job = job_named(self._weaver.jobs, asked.job)
        if is_over(job):
            return await self._kept(job)
        ranks = self._weaver.roster.ranks(job.id)
        roles = sorted({rank.role for rank in ranks if rank.state == "up"})
        found = await asyncio.gather(*(self._weaver.hangs.sample((job.id, role)) for role in roles))
        return {
            "job": job.id,
            "taken": "now",
            "time": views.when(time.time()),
            "roles": [role_shape(evidence) for evidence in found],
        }

    async def _kept(self, job: JobRow) -> dict[str, Any]:
        """Return the last verdict on each role, with its stacks."""
        state = self._weaver.store.state
        events = await self._weaver.aside(state.last_happened, job.id, _MOST_EVENTS)
        last = {event.facts["role"]: event for event in events if event.kind == "verdict"}
        at = max((event.time for event in last.values()), default=None)
        roles = [_role(event) for _, event in sorted(last.items())]
        return {"job": job.id, "taken": "kept", "time": views.when(at), "roles": roles}


def _role(event: EventRow) -> dict[str, Any]:
    names = ("culprits", "awaited", "kind", "words")
    verdict = {name: event.facts[name] for name in names}
    stacks = event.facts["stacks"]
    return {"role": event.facts["role"], "verdict": verdict, "stacks": stacks, "ranks": []}


class RunApi:
    """Runs, their differences and their curves; read in threads."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def experiments(self, asked: RunsRequest) -> dict[str, Any]:
        """Return a page of runs, newest first."""
        search = runs.RunSearch(
            text=asked.text,
            owner=asked.owner,
            project=asked.project,
            group=asked.group,
            tag=asked.tag,
            commit=asked.commit,
            states=tuple(sorted(set(asked.states or ()))),
            where=tuple(sorted(set(asked.where or ()))),
        )
        store = self._weaver.store
        return await self._weaver.aside(runs.listed, store, search, asked.limit, asked.cursor)

    async def experiment(self, asked: RunRequest) -> dict[str, Any]:
        """Return all that is known of a run."""
        return await self._weaver.aside(runs.shown, self._weaver.store, self._run(asked.run))

    async def compare(self, asked: CompareRunsRequest) -> dict[str, Any]:
        """Return how runs differ, in the order of the request."""
        if asked.runs is None:
            raise BadRequest("runs must be a list of names")
        found = [self._run(name) for name in asked.runs[: comparison.MOST + 1]]
        return await self._weaver.aside(comparison.compared, self._weaver.store, found)

    async def curves(self, asked: CurvesRequest) -> dict[str, Any]:
        """Return whole curves in few buckets: of some or all metrics, of the lowest rank or all."""
        job, records = job_named(self._weaver.jobs, asked.job), self._weaver.store.records
        return {"job": job.id, **await self._weaver.aside(_curves, records, job.id, asked)}

    def _run(self, name: str) -> str:
        return job_named(self._weaver.jobs, name).run_id


def _curves(records: RecordStore, job: str, asked: CurvesRequest) -> dict[str, Any]:
    whole, buckets = asked.all_ranks, max(1, asked.buckets)
    series = curves.series(records, job)
    lowest: dict[str, int] = {}
    for one in series:
        lowest[one.name] = min(one.rank, lowest.get(one.name, one.rank))
    ranks = None if whole else set(lowest.values())
    found = curves.curves(
        records, job, asked.names, ranks, buckets=buckets, replaced=asked.replaced
    )
    shown = [_plain(one) for one in found if whole or one.rank == lowest[one.name]]
    return {"names": sorted(lowest), "curves": shown}


def _plain(curve: curves.Curve) -> dict[str, Any]:
    older = [{"generation": one.generation, **_columns(one.buckets)} for one in curve.replaced]
    return {**_columns(curve), "replaced": older}


def _columns(one: curves.Curve | PointBuckets) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


class QueryApi:
    """Jobs, ranks, devices, commands, metrics and events; long reads are done in threads."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def status(self, asked: WeaverRequest) -> dict[str, Any]:
        weaver = self._weaver
        return {
            "epoch": weaver.epoch,
            "pid": os.getpid(),
            "host": weaver.host,
            "started_at": views.when(weaver.started_at),
            "database": weaver.store.place.state,
            "note": weaver.store.place.note,
            "connected": weaver.bus.connected,
            "jobs": len(weaver.jobs.active()),
            "agents": len(weaver.heartbeats.present),
            "ranks": sum(1 for _ in weaver.roster.living()),
            "backlog": weaver.ingest.writer.backlog,
            "stored": weaver.ingest.stored,
            "dropped": dict(weaver.dropped),
            "problems": self._problems(),
        }

    def _problems(self) -> dict[str, str]:
        self._weaver.health.look()
        return dict(self._weaver.health.problems)

    async def jobs(self, asked: JobsRequest) -> list[dict[str, Any]]:
        """Return jobs, newest first."""
        jobs = self._weaver.jobs.active() if asked.active else self._weaver.jobs.all()
        if asked.ids is not None:
            wanted = frozenset(asked.ids)
            jobs = [job for job in jobs if job.id in wanted]
        if asked.strangers:  # those that this plane has no run of
            jobs = [job for job in jobs if job.account or not is_launched(job) or not has_run(job)]
        if name := asked.named:
            jobs = [job for job in jobs if job.name == name or job.id.startswith(name)]
        return [self._job(job) for job in jobs[: asked.limit]]

    async def job(self, asked: JobRequest) -> dict[str, Any]:
        """Return a job with its ranks."""
        job = job_named(self._weaver.jobs, asked.job)
        run = self._weaver.store.state.one(RunRow, id=job.run_id)
        config = run.config if run else {}
        labels = {"tags": list(config.get("tags") or ()), "notes": config.get("notes") or ""}
        facts = {**job.facts, **({"account": job.account} if job.account else {})}
        shape = {**self._job(job), **labels, "facts": facts, "ranks": self._ranks(job)}
        row = self._weaver.coordinator.submission(job.id)
        return {**shape, "spec": hide_in_spec(row.spec) if row else None}

    async def ranks(self, asked: JobRequest) -> list[dict[str, Any]]:
        return self._ranks(job_named(self._weaver.jobs, asked.job))

    async def knobs(self, asked: KnobsRequest) -> list[dict[str, Any]]:
        """Return the knobs of a job with their current values."""
        deadline = time.monotonic() + asked.wait
        while True:
            job = job_named(self._weaver.jobs, asked.job)
            found = knobs_of(self._weaver.roster.ranks(job.id))
            if found or is_over(job) or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_LOOK)
        measured = await self._weaver.aside(self._latest, job.id)
        changes = self._weaver.command_rows.schedule(job.id)
        now = InForce(changes, measured, job.generation, self._step(job.id))
        return [now.of(knob) for knob in found.values()]

    def _latest(self, job: str) -> list[PointRow]:
        """Return the newest point of each metric; none where records cannot be read."""
        try:
            return self._weaver.store.records.latest(job)
        except RecordsLost:
            return []

    async def metrics(self, asked: MetricsRequest) -> dict[str, Any]:
        """Return the newest `limit` points of each curve; without a metric or rank, of all."""
        job = job_named(self._weaver.jobs, asked.job)
        which = (job.id, asked.metric or None, asked.rank, asked.after, asked.limit)
        records = self._weaver.store.records
        points = await self._weaver.aside(records.points, *which)
        names = await self._weaver.aside(records.names, job.id)
        return {"job": job.id, "names": names, "series": views.series_shape(points)}

    async def events(self, asked: EventsRequest) -> dict[str, Any]:
        """Return events of the weaver and of ranks, by time; `next` is the cursor after them."""
        job = self.job_of(asked)
        found = await self.aside(job, asked.after, asked.limit)
        return {**found, "items": sorted(found["items"], key=lambda item: item["time"])}

    def job_of(self, asked: EventsRequest) -> str | None:
        """Return the job whose events are requested; none for those of all jobs."""
        return job_named(self._weaver.jobs, asked.job).id if asked.job else None

    async def aside(self, job: str | None, after: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return `news`, read in a thread."""
        return await self._weaver.aside(self.news, job, after, limit)

    def news(self, job: str | None, after: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return the events after a cursor, or the newest ones."""
        place = (_cursor(after, "weaver"), _cursor(after, "ranks")) if after else None
        items, (happened, reported) = events_since(self._weaver.store, job, place, limit)
        return {"items": items, "next": {"weaver": happened, "ranks": reported}}

    async def devices(self, asked: WeaverRequest) -> dict[str, Any]:
        """Return every device with the ranks that use it."""
        devices = self._weaver.devices
        items = [views.device_shape(each, devices.processes(each.uuid)) for each in devices.all()]
        return {"version": devices.map.version, "devices": items}

    async def audit(self, asked: JobRequest) -> list[dict[str, Any]]:
        """Return every command of a job, in order, with the answer of each rank."""
        job = job_named(self._weaver.jobs, asked.job)
        rows = self._weaver.command_rows.audit(job.id)
        acks = self._weaver.command_rows.acks(row.id for row in rows)
        guards = self._weaver.guards.of(job.id)
        return [
            views.command_shape(row, [a for a in acks if a.command == row.id], guards.get(row.id))
            for row in rows
        ]

    def shape(self, job: JobRow) -> dict[str, Any]:
        """Return a job as clients see it."""
        return self._job(job)

    def _job(self, job: JobRow) -> dict[str, Any]:
        size = job.facts.get(WORLD_SIZE)
        if job.state == JobState.QUEUED:
            why = self._weaver.coordinator.queue.why().get(job.id, job.reason)
            return {**views.job_shape(job, None, size), "reason": why}
        if is_over(job) or is_released(job):
            return views.job_shape(job, job.step, size)
        ranks = len(self._weaver.roster.ranks(job.id))
        shape = views.job_shape(job, self._step(job.id), ranks or size)
        if "records" in self._weaver.health.problems:
            shape["warning"] = "; ".join(filter(None, (shape["warning"], _NO_METRICS)))
        return shape

    def _ranks(self, job: JobRow) -> list[dict[str, Any]]:
        ranks = self._weaver.roster.ranks(job.id)
        return [self._rank(rank) for rank in ranks]

    def _rank(self, rank: RankProcessRow) -> dict[str, Any]:
        shape = views.rank_shape(rank, self._weaver.heartbeats.progress(rank))
        why = self._weaver.hangs.suspects.get(rank.incarnation)
        return {**shape, "state": "suspect", "reason": why} if why else shape

    def _step(self, job: str) -> int | None:
        """Return the step that all of a job's ranks have reached."""
        ranks = [rank for rank in self._weaver.roster.ranks(job) if rank.state == "up"]
        found = [self._weaver.heartbeats.progress(rank) for rank in ranks]
        return min((each.step for each in found if each), default=None)


def _cursor(after: Mapping[str, Any], name: str) -> int:
    value = after.get(name, 0)
    return value if type(value) is int else 0
