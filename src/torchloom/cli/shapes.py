"""What a job and a rank look like, as JSON at every door and in words."""

from datetime import datetime
from typing import Any

from torchloom.cli.output import age, duration, paint
from torchloom.launch.record import RankRecord, Record
from torchloom.specs.api import AppState, make_app_handle, parse_app_handle

_COLOURS = {
    AppState.RUNNING: "cyan",
    AppState.SUCCEEDED: "green",
    AppState.FAILED: "red",
    AppState.CANCELLED: "yellow",
}


def paint_state(state: AppState) -> str:
    return paint(state.name, _COLOURS.get(state))


def took(record: Record) -> str:
    """Return how long a run ran, or has been running."""
    if record.started_at is None or record.ended_at is None:
        return age(record.started_at)
    times = [datetime.fromisoformat(at) for at in (record.started_at, record.ended_at)]
    return duration((times[1] - times[0]).total_seconds())


def handle_of(record: Record, scheduler: str = "local") -> str:
    return make_app_handle(scheduler, record.session, record.id)


def job_shape(record: Record, scheduler: str = "local") -> dict[str, Any]:
    """Return a job as every door shows it."""
    return {
        "id": record.id,
        "job_id": record.id,
        "run_id": record.id,
        "name": record.name,
        "state": record.state.name,
        "status": record.state.name,
        "reason": record.reason,
        "step": None,
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


def rank_shape(rank: RankRecord, host: str) -> dict[str, Any]:
    """Return a rank as every door shows it."""
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "role": rank.role,
        "replica": rank.replica,
        "node": host,
        "pid": rank.process.pid if rank.process else None,
        "state": rank.state.name,
        "step": None,
        "device_uuids": [],
        "generation": rank.attempt,
        "exit_code": rank.exit_code,
    }
