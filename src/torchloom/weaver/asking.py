"""Answers at the door that only look."""

import asyncio
import os
import time
from typing import Any

from torchloom.sealed import hide_in_spec
from torchloom.specs.job import JobState
from torchloom.weaver import shapes
from torchloom.weaver.events import events_since
from torchloom.weaver.jobs import WORLD_SIZE, has_run, is_launched, is_over, is_released
from torchloom.weaver.knobs import InForce, knobs_of
from torchloom.weaver.naming import job_named
from torchloom.weaver.question import Question
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import Job, Point, Rank, Run
from torchloom.weaver.store.snapshot import RecordsLost

_NO_METRICS = "its metrics are not stored now, see `loom doctor`"
_MOST = 100_000  # rows of one answer
_LONGEST_WAIT, _LOOK = 3600.0, 0.05  # seconds in which a job's first knobs come


class Asking:
    """Look at what the weaver knows; long reads are done beside the loop."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def status(self, asked: Question) -> dict[str, Any]:
        weaver = self._weaver
        return {
            "epoch": weaver.epoch,
            "pid": os.getpid(),
            "host": weaver.host,
            "started_at": shapes.when(weaver.started_at),
            "database": weaver.store.place.state,
            "note": weaver.store.place.note,
            "connected": weaver.bus.connected,
            "jobs": len(weaver.jobs.active()),
            "agents": len(weaver.agents.present),
            "ranks": sum(1 for _ in weaver.roster.living()),
            "backlog": weaver.ingest.writer.backlog,
            "stored": weaver.ingest.stored,
            "dropped": dict(weaver.dropped),
            "problems": self._problems(),
        }

    def _problems(self) -> dict[str, str]:
        self._weaver.health.look()
        return dict(self._weaver.health.problems)

    async def jobs(self, asked: Question) -> list[dict[str, Any]]:
        """Jobs, newest first."""
        limit, wanted = asked.count("limit", _MOST, _MOST), asked.texts("ids")
        jobs = self._weaver.jobs.active() if asked.flag("active") else self._weaver.jobs.all()
        if wanted is not None:
            jobs = [job for job in jobs if job.id in wanted]
        if asked.flag("strangers"):  # those of which there is no run of ours
            jobs = [job for job in jobs if job.account or not is_launched(job) or not has_run(job)]
        return [self._job(job) for job in jobs[:limit]]

    async def job(self, asked: Question) -> dict[str, Any]:
        """One job with its ranks."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        run = self._weaver.store.state.one(Run, id=job.run_id)
        config = run.config if run else {}
        labels = {"tags": list(config.get("tags") or ()), "notes": config.get("notes") or ""}
        facts = {**job.facts, **({"account": job.account} if job.account else {})}
        shape = {**self._job(job), **labels, "facts": facts, "ranks": self._ranks(job)}
        row = self._weaver.coordinator.submission(job.id)
        return {**shape, "spec": hide_in_spec(row.spec) if row else None}

    async def ranks(self, asked: Question) -> list[dict[str, Any]]:
        return self._ranks(job_named(self._weaver.jobs, asked.text("job")))

    async def knobs(self, asked: Question) -> list[dict[str, Any]]:
        """The knobs of a job, each with the value that is in force; `wait` is for the first."""
        deadline = time.monotonic() + asked.seconds("wait", 0.0, _LONGEST_WAIT)
        while True:
            job = job_named(self._weaver.jobs, asked.text("job"))
            found = knobs_of(self._weaver.roster.ranks(job.id))
            if found or is_over(job) or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_LOOK)
        measured = await self._weaver.aside(self._latest, job.id)
        changes = self._weaver.ledger.schedule(job.id)
        now = InForce(changes, measured, job.generation, self._step(job.id))
        return [now.of(knob) for knob in found.values()]

    def _latest(self, job: str) -> list[Point]:
        """Return the newest point of each metric; none where records cannot be read."""
        try:
            return self._weaver.store.records.latest(job)
        except RecordsLost:
            return []

    async def metrics(self, asked: Question) -> dict[str, Any]:
        """Curves; without a metric or rank all, from a step on, the newest `limit` points each."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        name, rank = asked.text("metric") or None, asked.number("rank")
        after, limit = asked.number("after"), asked.count("limit", 1000, _MOST)
        records = self._weaver.store.records
        points = await self._weaver.aside(records.points, job.id, name, rank, after, limit)
        names = await self._weaver.aside(records.names, job.id)
        return {"job": job.id, "names": names, "series": shapes.series_shape(points)}

    async def events(self, asked: Question) -> dict[str, Any]:
        """What happened and what was told, by time; `next` is where to read on from."""
        job = self.meant(asked)
        limit, after = asked.count("limit", 100, 10_000), asked.mapping("after")
        found = await self.aside(job, after, limit)
        return {**found, "items": sorted(found["items"], key=lambda item: item["time"])}

    def meant(self, asked: Question) -> str | None:
        """Return which job's events are asked for; nothing for those of all."""
        name = asked.text("job")
        return job_named(self._weaver.jobs, name).id if name else None

    async def aside(self, job: str | None, after: dict[str, Any], limit: int) -> dict[str, Any]:
        """Return `news`, read in another thread."""
        return await self._weaver.aside(self.news, job, after, limit)

    def news(self, job: str | None, after: dict[str, Any], limit: int) -> dict[str, Any]:
        """Return what is new since `after`, or the newest of all."""
        place = (_cursor(after, "weaver"), _cursor(after, "ranks")) if after else None
        items, (happened, told) = events_since(self._weaver.store, job, place, limit)
        return {"items": items, "next": {"weaver": happened, "ranks": told}}

    async def devices(self, asked: Question) -> dict[str, Any]:
        """Every device, and who uses it."""
        devices = self._weaver.devices
        items = [shapes.device_shape(each, devices.processes(each.uuid)) for each in devices.all()]
        return {"version": devices.map.version, "devices": items}

    async def audit(self, asked: Question) -> list[dict[str, Any]]:
        """Every command of a job, in order, with what each rank said."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        rows = self._weaver.ledger.audit(job.id)
        acks = self._weaver.ledger.acks(row.id for row in rows)
        guards = self._weaver.guards.of(job.id)
        return [
            shapes.command_shape(row, [a for a in acks if a.command == row.id], guards.get(row.id))
            for row in rows
        ]

    def shape(self, job: Job) -> dict[str, Any]:
        """Return a job as every door shows it."""
        return self._job(job)

    def _job(self, job: Job) -> dict[str, Any]:
        told = job.facts.get(WORLD_SIZE)
        if job.state == JobState.QUEUED:
            why = self._weaver.coordinator.turns.why().get(job.id, job.reason)
            return {**shapes.job_shape(job, None, told), "reason": why}
        if is_over(job) or is_released(job):
            return shapes.job_shape(job, job.step, told)
        ranks = len(self._weaver.roster.ranks(job.id))
        shape = shapes.job_shape(job, self._step(job.id), ranks or told)
        if "records" in self._weaver.health.problems:
            shape["warning"] = "; ".join(filter(None, (shape["warning"], _NO_METRICS)))
        return shape

    def _ranks(self, job: Job) -> list[dict[str, Any]]:
        ranks = self._weaver.roster.ranks(job.id)
        return [self._rank(rank) for rank in ranks]

    def _rank(self, rank: Rank) -> dict[str, Any]:
        shape = shapes.rank_shape(rank, self._weaver.agents.progress(rank))
        why = self._weaver.hangs.suspects.get(rank.incarnation)
        return {**shape, "state": "suspect", "reason": why} if why else shape

    def _step(self, job: str) -> int | None:
        """Return the step that all of a job's ranks have reached."""
        ranks = [rank for rank in self._weaver.roster.ranks(job) if rank.state == "up"]
        found = [self._weaver.agents.progress(rank) for rank in ranks]
        return min((each.step for each in found if each), default=None)


def _cursor(after: dict[str, Any], name: str) -> int:
    value = after.get(name, 0)
    return value if type(value) is int else 0
