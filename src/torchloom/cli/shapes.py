"""What a job and a rank look like, as JSON at every door and in words."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from torchloom.cli.output import age, duration, paint
from torchloom.launch.record import RankRecord, Record
from torchloom.specs.api import AppState, make_app_handle, parse_app_handle

if TYPE_CHECKING:
    from torchloom.cli.live import Live

_FINER = ("PAUSED", "RECOVERING")  # than any state of a scheduler
_COLOURS = {
    "RUNNING": "cyan",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "PAUSED": "magenta",
    "RECOVERING": "yellow",
}


def paint_state(state: str) -> str:
    return paint(state, _COLOURS.get(state))


def took(record: Record) -> str:
    """Return how long a run ran, or has been running."""
    return lasted(record.started_at, record.ended_at)


def lasted(started_at: str | None, ended_at: str | None) -> str:
    """Return the time from a beginning to an end, or until now."""
    if started_at is None or ended_at is None:
        return age(started_at)
    times = [datetime.fromisoformat(at) for at in (started_at, ended_at)]
    return duration((times[1] - times[0]).total_seconds())


def handle_of(record: Record, scheduler: str = "local") -> str:
    return make_app_handle(scheduler, record.session, record.id)


def state_of(record: Record, live: "Live | None") -> str:
    """Return a job's state: the plane knows finer ones while the job goes on."""
    if live and live["state"] in _FINER and (not record.is_over() or is_released(live)):
        return str(live["state"])
    return record.state.name


def is_released(live: "Live | None") -> bool:
    """Tell whether a job is paused and has given back what it had: its run is over for now."""
    return live is not None and (live["state"], live["reason"]) == ("PAUSED", "released")


def job_shape(
    record: Record, scheduler: str = "local", live: "Live | None" = None
) -> dict[str, Any]:
    """Return a job as every door shows it; `live` is what the plane knows of it."""
    state = state_of(record, live)
    return {
        "id": record.id,
        "job_id": record.id,
        "run_id": record.id,
        "name": record.name,
        "state": state,
        "status": state,
        "reason": live["reason"] if live and is_released(live) else record.reason,
        "step": live["step"] if live else None,
        "world_size": len(record.ranks) or (live["world_size"] if live else None),
        "attempt": record.restarts + 1,
        "generation": record.restarts,
        "handle": handle_of(record, scheduler),
        "scheduler": scheduler,
        "owner": record.owner,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }


def engine_job_shape(handle: str, name: str, state: AppState) -> dict[str, Any]:
    """Return a job of another engine: as much of a job as every engine tells."""
    scheduler, _, app_id = parse_app_handle(handle)
    return {
        "id": app_id,
        "name": name,
        "state": state.name,
        "handle": handle,
        "scheduler": scheduler,
    }


def rank_shape(rank: RankRecord, host: str, live: "Live | None" = None) -> dict[str, Any]:
    """Return a rank as every door shows it; `live` is what the plane knows of it."""
    known = live or {}
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "role": rank.role,
        "replica": rank.replica,
        "node": rank.process.host if rank.process else host,
        "pid": rank.process.pid if rank.process else None,
        "state": rank.state.name,
        "step": known.get("step"),
        "device_uuids": known.get("device_uuids", []),
        "generation": rank.attempt,
        "exit_code": rank.exit_code,
    }
