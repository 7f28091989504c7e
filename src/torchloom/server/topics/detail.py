"""One job as its page shows it: where it stands by three clocks, its ranks, what can be changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchloom.server.joblogs import record_of
from torchloom.server.letters import whole
from torchloom.server.living import shape
from torchloom.server.topics.boards import Boards
from torchloom.server.topics.rows import JobRows
from torchloom.server.weaver_link import WeaverAway
from torchloom.specs.states import JobState
from torchloom.weaver.api.refusals import is_resizable
from torchloom.weaver.store.series import curves

INTERVAL = 0.5  # seconds between two looks
_RANKS = 512  # that are shown one by one
_ALL = ("set", "undo", "pause", "resume", "resize", "stop", "checkpoint", "cancel")
_VERBS: Mapping[str, tuple[str, ...]] = {
    JobState.QUEUED: ("cancel",),
    JobState.RUNNING: ("set", "undo", "pause", "resize", "stop", "checkpoint", "cancel"),
    JobState.RECOVERING: ("stop", "cancel"),
    JobState.PAUSED: ("resume", "stop", "cancel"),
}
_OF_FACTS = ("first_error", "summary")


class JobDetail:
    """Reads one job for all who look at it."""

    def __init__(self, boards: Boards, rows: JobRows, job: str) -> None:
        self._boards = boards
        self._desk = boards.desk
        self._rows = rows
        self._job = job

    async def look(self) -> dict[str, Any]:
        """Return everything there is to show; without a weaver, what the database has."""
        row = await self._desk.stored(self._job)
        if row is None:  # it has been removed meanwhile
            return {"job": None}
        (shown,) = await self._rows.rows([row])
        try:
            found = await self._boards.ask("job", job=self._job)
            knobs = await self._boards.ask("knobs", job=self._job)
        except WeaverAway:
            found, knobs = {**shape(row), "facts": whole(row.facts), "ranks": []}, []
        ranks = [_steady(rank) for rank in found["ranks"][:_RANKS]]
        more = {name: found["facts"].get(name) or None for name in _OF_FACTS}
        names = await self._desk.read(curves.names, self._desk.store.records, self._job)
        engine = await self._desk.read(self._engine)
        return {
            "job": {**shown, **more},
            "clocks": clocks_of(shown, found["ranks"], engine),
            "ranks": ranks,
            "knobs": knobs,
            "metrics": names,
            "verbs": verbs_of(shown["state"], bool(ranks), bool(knobs), is_resizable(row)),
        }

    def _engine(self) -> str:
        """Return what the engine that started the job says of it; nothing where none is ours."""
        record = record_of(self._desk.files(self._job), self._job)
        return record.truth().state.name if record is not None else ""


def verbs_of(state: str, has_ranks: bool, has_knobs: bool, is_resizable: bool) -> list[str]:
    """Return what can be asked of a job as it is."""
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
    """Return what processes, progress and the scheduler say, each for itself."""
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
        return {"state": "none", "up": 0, "total": total, "detail": "no rank is there yet"}
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
        return {"state": "UNKNOWN", **facts, "detail": "nobody of ours has started it"}
    return {"state": engine, **facts, "detail": f"{job['scheduler']} says {engine}"}


def _steady(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank whose figures do not change with every look."""
    silent, took = rank["silent_seconds"], rank["step_seconds"]
    return {
        **rank,
        "silent_seconds": None if silent is None else int(silent),
        "step_seconds": None if took is None else float(f"{took:.3g}"),
    }
