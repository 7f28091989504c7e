"""What verbs print: tables that fit, JSON in one shape, ages that people read."""

import json
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from torchloom.launch.record import RankRecord, Record
from torchloom.specs.api import AppState, make_app_handle

_COLOURS = {
    AppState.RUNNING: "cyan",
    AppState.SUCCEEDED: "green",
    AppState.FAILED: "red",
    AppState.CANCELLED: "yellow",
}


def echo_json(value: Any) -> None:
    """Print one value; lists are bare arrays."""
    click.echo(json.dumps(value, indent=2))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows in columns; the last one is cut where the terminal ends."""
    lines = [tuple(heads), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads) - 1)]
    room = shutil.get_terminal_size((80, 24)).columns - sum(widths) - 2 * len(widths)
    shown = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        shown.append("  ".join([*cells, clip(line[-1], max(room, 8))]).rstrip())
    return "\n".join(shown)


def clip(text: str, room: int) -> str:
    """Return text that fits, on one line."""
    flat = "".join(char if char.isprintable() else "?" for char in text)
    return flat if len(flat) <= room else f"{flat[: room - 1]}…"


def paint(state: AppState) -> str:
    """Return a state's name in its colour; click drops it where there is no terminal."""
    return click.style(state.name, fg=_COLOURS.get(state))


def age(since: str | None) -> str:
    """Return how long ago an instant was, in its two largest units at most."""
    if since is None:
        return "-"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds())
    return duration(max(0, seconds))


def duration(seconds: float) -> str:
    """Return seconds as people say them: 42s, 3m10s, 2h05m, 3d4h."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def took(record: Record) -> str:
    """Return how long a run ran, or has been running."""
    if record.started_at is None:
        return "-"
    if record.ended_at is None:
        return age(record.started_at)
    times = [datetime.fromisoformat(at) for at in (record.started_at, record.ended_at)]
    return duration((times[1] - times[0]).total_seconds())


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
        "handle": make_app_handle(scheduler, record.session, record.id),
        "scheduler": scheduler,
        "owner": record.owner,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
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
