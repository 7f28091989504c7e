"""Jobs, ranks, commands, devices and events as clients see them: plain JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

from torchloom.bus.progress_page import StepPhase
from torchloom.messages.plane import Progress
from torchloom.rules import divergence
from torchloom.weaver.commands.driver import knob_payload
from torchloom.weaver.jobs.registry import part_of
from torchloom.weaver.store import StateStore, rows
from torchloom.weaver.store.rows import (
    CheckpointRow,
    CommandAck,
    CommandRow,
    DeviceRow,
    EventRow,
    GuardRow,
    JobRow,
    PointRow,
    RankEventRow,
    RankProcessRow,
)
from torchloom.weaver.store.series.records import RecordStore
from torchloom.weaver.store.series.tables import RecordsLost


def when(seconds: float | None) -> str | None:
    """Return a time as clients see it: UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def job_shape(job: JobRow, step: int | None, ranks: int | None) -> dict[str, Any]:
    return {
        "id": job.id,
        "job_id": job.id,
        "run_id": job.run_id,
        "name": job.name,
        "state": job.state,
        "status": job.state,
        "reason": job.reason,
        "warning": warning_of(job),
        "step": step,
        "world_size": ranks,
        "attempt": job.attempt,
        "generation": job.generation,
        "handle": job.handle,
        "scheduler": job.scheduler,
        "owner": job.owner,
        "created_at": when(job.created_at),
        "started_at": when(job.started_at),
        "ended_at": when(job.ended_at),
    }


def warning_of(job: JobRow) -> str:
    """Return what is wrong with a job beside its state, in words."""
    world = part_of(job)
    part = "" if world is None else f"partly attached: its program trains with {world} ranks"
    return "; ".join(filter(None, (part, divergence.words(job.facts.get(divergence.FACT) or {}))))


def rank_shape(rank: RankProcessRow, progress: Progress | None) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "role": rank.role,
        "replica": rank.replica,
        "node": rank.node,
        "pid": rank.pid,
        "state": rank.state,
        "reason": rank.reason,
        "step": progress.step if progress else None,
        "phase": _phase(progress.phase) if progress else None,
        "step_seconds": progress.step_seconds if progress else None,
        "silent_seconds": progress.moved if progress else None,
        "device_uuids": list(rank.devices),
        "generation": rank.generation,
        "incarnation": rank.incarnation,
        "boundary": rank.boundary,
    }


def command_shape(
    row: CommandRow, acks: Iterable[CommandAck], guard: GuardRow | None = None
) -> dict[str, Any]:
    payload = knob_payload(row.payload) if row.kind == "knob" else row.payload
    return {
        "id": row.id,
        "number": row.number,
        "job": row.job,
        "kind": row.kind,
        "payload": payload,
        "at": row.at,
        "author": row.author,
        "reason": row.reason,
        "asked_at": when(row.asked_at),
        "state": row.state,
        "generation": row.generation,
        "effective_step": row.effective,
        "before": row.before,
        "after": row.after,
        "outcome": row.outcome,
        "ended_at": when(row.ended_at),
        "ranks": [_ack(ack) for ack in acks if ack.generation == row.generation],
        "guard": guard_shape(guard) if guard else None,
    }


def guard_shape(row: GuardRow) -> dict[str, Any]:
    return {
        "condition": row.words,
        "steps": row.span,
        "base": row.base,
        "state": row.state,
        "reason": row.why,
    }


def checkpoint_shape(row: CheckpointRow) -> dict[str, Any]:
    took = None
    if row.committed_at is not None:
        took = round(max(0.0, row.committed_at - row.created_at), 6)
    return {
        "job": row.job,
        "step": row.step,
        "generation": row.generation,
        "attempt": row.attempt,
        "state": row.state,
        "world_size": row.world_size,
        "bytes": row.bytes,
        "place": row.place,
        "metrics": row.metrics,
        "trigger": row.trigger,
        "trainer": row.trainer,
        "path": row.path,
        "reason": row.reason,
        "created_at": when(row.created_at),
        "committed_at": when(row.committed_at),
        "seconds": took,
    }


def device_shape(device: DeviceRow, processes: list[str]) -> dict[str, Any]:
    shape = asdict(device)
    return {**shape, "changed_at": when(device.changed_at), "processes": processes}


def event_shape(row: EventRow) -> dict[str, Any]:
    return {**asdict(row), "time": when(row.time), "from": "weaver"}


def rank_event_shape(row: RankEventRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "time": when(row.time),
        "job": row.job,
        "kind": row.kind,
        "rank": row.rank,
        "step": row.step,
        "generation": row.generation,
        "facts": row.facts,
        "from": "rank",
    }


def series_shape(points: Iterable[PointRow]) -> list[dict[str, Any]]:
    """Return curves: one a name, role and rank, its points as (step, unix seconds, value)."""
    curves: dict[tuple[str, str, int], list[list[float]]] = {}
    for point in points:
        curve = curves.setdefault((point.name, point.role, point.rank), [])
        curve.append([point.step, point.time, point.value])
    return [
        {"name": name, "role": role, "rank": rank, "points": curve}
        for (name, role, rank), curve in curves.items()
    ]


def _ack(ack: CommandAck) -> dict[str, Any]:
    names = ("rank", "state", "step", "before", "after")
    return {**{name: getattr(ack, name) for name in names}, "at": when(ack.at)}


def _phase(number: int) -> str:
    try:
        return StepPhase(number).name.lower()
    except ValueError:  # a newer rank
        return str(number)


EventPosition = tuple[int, int]  # the last event of the weaver, and the last one of ranks


class Databases(Protocol):
    """An object with both databases."""

    @property
    def state(self) -> StateStore: ...

    @property
    def records(self) -> RecordStore: ...


def events_since(
    store: Databases, job: str | None, after: EventPosition | None, limit: int
) -> tuple[list[dict[str, Any]], EventPosition]:
    """Return the events after a position, or the newest ones, and the position after them."""
    if after is None:
        happened = store.state.last_happened(job, limit)
    else:
        happened = store.state.happened(job, after[0], limit)
    reported = _reported(store, job, after, limit)
    first = after or (0, 0)
    upto = (happened[-1].seq if happened else first[0], reported[-1].id if reported else first[1])
    return [*map(event_shape, happened), *map(rank_event_shape, reported)], upto


def _reported(
    store: Databases, job: str | None, after: EventPosition | None, limit: int
) -> list[rows.RankEventRow]:
    """Return what ranks reported; nothing where their records cannot be read."""
    try:
        if after is None:
            return store.records.last_events(job, limit)
        return store.records.events(job, after[1], limit)
    except RecordsLost:
        return []
