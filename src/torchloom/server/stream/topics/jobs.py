"""The list of jobs and one job as pages show them: progress, speed, and the latest loss."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from torchloom.server.job_records import job_shape, living_jobs
from torchloom.server.logs.lines import record_of
from torchloom.server.stream.topics.boards import Boards
from torchloom.server.text import whole
from torchloom.server.weaver_link import WeaverAway
from torchloom.specs.states import JobState
from torchloom.weaver.api.refusals import is_resizable
from torchloom.weaver.store.reader import JobFilter, PlaneReader
from torchloom.weaver.store.rows import JobRow, RankProcessRow, RunRow, SubmissionRow
from torchloom.weaver.store.series import curves

ROWS_INTERVAL = 1.0  # seconds between two polls
MOST = 200  # jobs, the newest
_SPARK = 60  # values of a small curve
_FRESH = 2.0  # seconds for which the small curve of a running job counts
_AT_ONCE = 20  # small curves that one poll reads
_LATE = 30.0  # seconds in which the last reports of ranks may still arrive
_SPAN = 15.0  # seconds over which speed is taken
_KNOWN = 1000  # jobs in the cache
_TOTALS = ("total_steps", "max_steps", "steps")  # what a run calls the number of its steps
DETAIL_INTERVAL = 0.5  # seconds between two polls
_RANKS = 512  # that are shown one by one
_ALL = ("set", "undo", "pause", "resume", "resize", "stop", "checkpoint", "cancel")
_VERBS: Mapping[str, tuple[str, ...]] = {
    JobState.QUEUED: ("cancel",),
    JobState.RUNNING: ("set", "undo", "pause", "resize", "stop", "checkpoint", "cancel"),
    JobState.RECOVERING: ("stop", "cancel"),
    JobState.PAUSED: ("resume", "stop", "cancel"),
}
_OF_FACTS = ("first_error", "summary")


Jobs = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class KnownJob:
    """What is cached of a job between two polls."""

    steps: deque[tuple[float, int]] = field(default_factory=deque)
    spark: list[float | None] = field(default_factory=list)
    name: str | None = None
    read_at: float = float("-inf")
    is_last: bool = False  # it has ended and its curve was read since
    labels: dict[str, Any] | None = None  # of one that has ended


class JobPace:
    """The speed of jobs, by the steps of earlier polls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._known: OrderedDict[str, KnownJob] = OrderedDict()

    def of(self, job: str) -> KnownJob:
        known = self._known.setdefault(job, KnownJob())
        self._known.move_to_end(job)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return known

    def saw(self, job: str, step: int | None, is_running: bool) -> float | None:
        """Record the step of a job; return its steps per second, when that is known."""
        seen, now = self.of(job).steps, self.clock()
        if step is None or not is_running or (seen and step < seen[-1][1]):
            seen.clear()
        if step is None or not is_running:
            return None
        seen.append((now, step))
        while len(seen) > 2 and now - seen[0][0] > _SPAN:
            seen.popleft()
        took = now - seen[0][0]
        return (step - seen[0][1]) / took if took > 0 and step > seen[0][1] else None


class JobRows:
    """Reads the list for all pages."""

    def __init__(self, boards: Boards, pace: JobPace) -> None:
        self._boards = boards
        self._access = boards.access
        self._pace = pace

    async def read(self) -> list[dict[str, Any]]:
        """Return the newest jobs, newest first."""
        rows = await self._access.read(self._access.store.state.page, JobFilter(), None, MOST)
        return await self.rows(rows)

    async def rows(self, rows: Sequence[JobRow]) -> list[dict[str, Any]]:
        """Return some jobs as a list shows them."""
        shown = await living_jobs(self._boards, rows)
        queue = await self._queue(shown)
        known = {job["id"]: self._pace.of(job["id"]) for job in shown}
        more = await self._access.read(self._labels, shown, known)
        await self._access.read(self._curves, shown, known)
        return [self._row(job, queue, more) for job in shown]

    async def _queue(self, jobs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        if not any(job["state"] == JobState.QUEUED for job in jobs):
            return {}
        try:
            return {one["job"]: one["position"] for one in await self._boards.ask("queue")}
        except WeaverAway:
            return {}

    def _labels(self, jobs: Jobs, known: Mapping[str, KnownJob]) -> dict[str, dict[str, Any]]:
        """Return the labels of jobs; those of ended jobs are cached."""
        settled = {job["id"] for job in jobs if is_settled(job)}
        cached = {job: one.labels for job, one in known.items() if one.labels and job in settled}
        found = labels(self._access.store, [job for job in known if job not in cached])
        for job in settled & found.keys():
            known[job].labels = found[job]
        return {**cached, **found}

    def _curves(self, jobs: Jobs, known: Mapping[str, KnownJob]) -> None:
        """Read the small curves that are old, those first that were not read for longest."""
        settled, now = {job["id"]: is_settled(job) for job in jobs}, self._pace.clock()
        others = {job: one for job, one in known.items() if not (one.is_last and settled[job])}
        old = [job for job, one in others.items() if now - one.read_at >= _FRESH]
        for job in sorted(old, key=lambda job: known[job].read_at)[:_AT_ONCE]:
            known[job].name, known[job].spark = spark_of(self._access.store, job)
            known[job].read_at, known[job].is_last = now, settled[job]

    def _row(
        self, job: dict[str, Any], queue: Mapping[str, int], more: Mapping[str, Any]
    ) -> dict[str, Any]:
        known, its = self._pace.of(job["id"]), more[job["id"]]
        is_running = job["state"] == JobState.RUNNING
        speed = self._pace.saw(job["id"], job["step"], is_running)
        total = its.get("total_steps")
        return {
            **job,
            **progress_of(job["step"], total, speed),
            "throughput": None if speed is None else float(f"{speed:.4g}"),
            "loss": known.spark[-1] if known.spark else None,
            "spark": list(known.spark),
            "spark_name": known.name,
            "queue_position": queue.get(job["id"]),
            "project": its.get("project", ""),
            "tags": its.get("tags", []),
        }


def is_settled(job: Mapping[str, Any]) -> bool:
    """Return whether a job ended so long ago that all reports of its ranks have arrived."""
    if not JobState(job["state"]).is_final or not job["ended_at"]:
        return False
    return abs(time.time() - datetime.fromisoformat(job["ended_at"]).timestamp()) > _LATE


def progress_of(step: int | None, total: int | None, speed: float | None) -> dict[str, Any]:
    """Return the progress and the remaining time, where these are known."""
    if step is None or total is None:
        return {"progress": None, "total_steps": total, "eta_seconds": None}
    left = max(0, total - step)
    eta = round(left / speed) if speed else None
    return {"progress": min(1.0, step / total), "total_steps": total, "eta_seconds": eta}


def labels(store: PlaneReader, jobs: list[str]) -> dict[str, dict[str, Any]]:
    """Return project, tags and number of steps of jobs, as far as these are given."""
    found: dict[str, dict[str, Any]] = {job: {} for job in jobs}
    for run in store.state.find(RunRow, job=jobs):
        given = {name: run.config.get(name) for name in ("project", "tags")}
        found[run.job] |= {name: value for name, value in given.items() if value}
    for rank in store.state.find(RankProcessRow, job=jobs):
        found[rank.job] |= _total({knob["name"]: knob["value"] for knob in rank.knobs})
    for row in store.state.find(SubmissionRow, job=jobs):
        spec = row.spec
        given = {name: spec.get(name) for name in ("project", "tags")}
        found[row.job] |= {name: value for name, value in given.items() if value}
        found[row.job] |= _total(spec.get("hyperparameters") or {})
    for job in store.state.find(JobRow, id=jobs):  # a loop ends with its data, or before at a limit
        known = {**_total(job.facts), **found[job.id]}
        found[job.id] |= {n: min(total, known[n]) for n, total in _total(job.facts).items()}
    plain: dict[str, dict[str, Any]] = whole(found)
    return plain


def spark_of(store: PlaneReader, job: str) -> tuple[str | None, list[float | None]]:
    """Return the name of a job's loss, and its curve in few values."""
    series = curves.series(store.records, job)
    names = sorted({each.name for each in series}, key=lambda name: (name != "loss", name))
    name = next((name for name in names if "loss" in name.lower()), None)
    if name is None:
        return None, []
    rank = min(each.rank for each in series if each.name == name)
    drawn = curves.curves(store.records, job, [name], [rank], buckets=_SPARK)
    return name, [_short(value) for value in drawn[0].last] if drawn else []


def _short(value: float) -> float | None:
    """Return a rounded number; NaN, which is never equal to itself, becomes nothing."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _total(given: Mapping[str, Any]) -> dict[str, int]:
    found = (given.get(name) for name in _TOTALS)
    numbers = [value for value in found if type(value) is int and value > 0]
    return {"total_steps": numbers[0]} if numbers else {}


class JobDetailBoard:
    """Reads one job for all pages."""

    def __init__(self, boards: Boards, rows: JobRows, job: str) -> None:
        self._boards = boards
        self._access = boards.access
        self._rows = rows
        self._job = job

    async def read(self) -> dict[str, Any]:
        """Return the whole value of the topic; without a weaver, what the database has."""
        row = await self._access.stored(self._job)
        if row is None:  # it has been removed meanwhile
            return {"job": None}
        (shown,) = await self._rows.rows([row])
        try:
            found = await self._boards.ask("job", job=self._job)
            knobs = await self._boards.ask("knobs", job=self._job)
        except WeaverAway:
            found, knobs = {**job_shape(row), "facts": whole(row.facts), "ranks": []}, []
        ranks = [_steady(rank) for rank in found["ranks"][:_RANKS]]
        more = {name: found["facts"].get(name) or None for name in _OF_FACTS}
        names = await self._access.read(curves.names, self._access.store.records, self._job)
        engine = await self._access.read(self._engine)
        return {
            "job": {**shown, **more},
            "clocks": clocks_of(shown, found["ranks"], engine),
            "ranks": ranks,
            "knobs": knobs,
            "metrics": names,
            "verbs": verbs_of(shown["state"], bool(ranks), bool(knobs), is_resizable(row)),
        }

    def _engine(self) -> str:
        """Return the job's state in the engine that started it; nothing where it is not ours."""
        record = record_of(self._access.files(self._job), self._job)
        return record.truth().state.name if record is not None else ""


def verbs_of(state: str, has_ranks: bool, has_knobs: bool, is_resizable: bool) -> list[str]:
    """Return the verbs that a job allows in its present state."""
    verbs = ("resume",) if JobState(state).is_final else _VERBS[state]
    if not has_knobs:
        verbs = tuple(verb for verb in verbs if verb not in ("set", "undo"))
    if not is_resizable:
        verbs = tuple(verb for verb in verbs if verb != "resize")
    if not has_ranks:
        verbs = tuple(verb for verb in verbs if verb in ("resume", "cancel"))
    return [verb for verb in _ALL if verb in verbs]


def clocks_of(
    job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], engine: str
) -> dict[str, Any]:
    """Return the state of processes, progress and scheduler, each on its own."""
    return {
        "process": _process(job, ranks),
        "progress": _progress(job, ranks),
        "scheduler": _scheduler(job, engine),
    }


def _process(job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    up = sum(rank["state"] in ("up", "suspect") for rank in ranks)
    total = job["world_size"] or len(ranks)
    if JobState(job["state"]).is_final:
        return {"state": "over", "up": up, "total": total, "detail": f"ended, {job['reason']}"}
    if not ranks:
        return {"state": "none", "up": 0, "total": total, "detail": "no rank has registered yet"}
    state = "ok" if up >= total else "lost"
    return {"state": state, "up": up, "total": total, "detail": f"{up} of {total} ranks are up"}


def _progress(job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    there = [rank for rank in ranks if rank["state"] in ("up", "suspect")]
    known = [rank for rank in there if rank["step"] is not None]
    last = min(known, key=lambda rank: rank["step"], default=None)
    silent = max((rank["silent_seconds"] or 0.0 for rank in known), default=None)
    facts = {
        "step": job["step"],
        "phase": last["phase"] if last else None,
        "seconds_since": None if silent is None else int(silent),
    }
    suspects = [rank for rank in ranks if rank["state"] == "suspect"]
    if JobState(job["state"]).is_final:
        return {"state": "over", **facts, "detail": f"came to step {job['step']}"}
    if suspects:
        return {"state": "suspect", **facts, "detail": suspects[0]["reason"]}
    if last is None:
        return {"state": "unknown", **facts, "detail": "no step was seen yet"}
    return {"state": "ok", **facts, "detail": f"all ranks have reached step {job['step']}"}


def _scheduler(job: Mapping[str, Any], engine: str) -> dict[str, Any]:
    facts = {"engine": job["scheduler"], "handle": job["handle"]}
    if job["state"] == JobState.QUEUED:
        return {"state": "QUEUED", **facts, "detail": job["reason"]}
    if not engine:
        return {"state": "UNKNOWN", **facts, "detail": "it was not started by this plane"}
    return {"state": engine, **facts, "detail": f"{job['scheduler']} reports {engine}"}


def _steady(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank with rounded figures, which do not change with every poll."""
    silent, took = rank["silent_seconds"], rank["step_seconds"]
    return {
        **rank,
        "silent_seconds": None if silent is None else int(silent),
        "step_seconds": None if took is None else float(f"{took:.3g}"),
    }
