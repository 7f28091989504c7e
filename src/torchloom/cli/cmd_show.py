"""`loom show`: one job: state and why, its ranks, its first error."""

from typing import Any

import click

from torchloom.cli.output import (
    age,
    clip,
    echo_json,
    job_shape,
    paint,
    rank_shape,
    table,
    took,
)
from torchloom.launch.folder import RunFolder
from torchloom.launch.record import Record
from torchloom.runner.api import get_runner
from torchloom.runner.naming import find_job
from torchloom.specs.api import NONE, AppState

_LAST_WORDS = 8  # lines of the failed rank's stderr


@click.command("show")
@click.argument("job", required=False)
@click.option("--wait", is_flag=True, help="Wait for its end first; exit 1 unless it SUCCEEDED.")
@click.option("--spec", is_flag=True, help="Print the app as it was submitted.")
@click.option("--events", is_flag=True, help="Print what happened, in order.")
@click.option("--roles", metavar="A,B", help="Only these roles.")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def command(
    job: str | None, wait: bool, spec: bool, events: bool, roles: str | None, as_json: bool
) -> int:
    """Show one job: by id, the beginning of it, name, handle, or @ for the newest."""
    record = find_job(job)
    if wait:
        record = _waited(record)
    if spec:
        _show_spec(record, as_json)
    elif events:
        _show_events(record, as_json)
    else:
        _show(record, set(roles.split(",")) if roles else None, as_json)
    return 1 if wait and record.state is not AppState.SUCCEEDED else 0


def _waited(record: Record) -> Record:
    get_runner().wait(job_shape(record)["handle"])
    return find_job(record.id)


def _show(record: Record, roles: set[str] | None, as_json: bool) -> None:
    ranks = [rank for rank in record.ranks if roles is None or rank.role in roles]
    error = first_error(record)
    if as_json:
        shown = [rank_shape(rank, record.host) for rank in ranks]
        extra = {"host": record.host, "log_dir": record.log_dir, "error": error}
        lost = {"lost_log_bytes": record.lost_log_bytes}
        echo_json({**job_shape(record), **extra, **lost, "ranks": shown})
        return
    for name, value in _facts(record):
        click.echo(f"{name:<9}{value}")
    rows = [
        (
            rank.role,
            str(rank.replica),
            str(rank.rank),
            rank.state.name,
            str(rank.process.pid if rank.process else "-"),
            "-" if rank.exit_code is None else str(rank.exit_code),
            rank.logs,
        )
        for rank in ranks
    ]
    click.echo("\n" + table(("ROLE", "REPLICA", "RANK", "STATE", "PID", "EXIT", "LOGS"), rows))
    if error:
        click.echo(f"\nfirst error:\n{error}")


def _facts(record: Record) -> list[tuple[str, str]]:
    why = f"  {clip(record.reason, 60)}" if record.reason else ""
    facts = [
        ("id", record.id),
        ("handle", str(job_shape(record)["handle"])),
        ("state", paint(record.state) + why),
        ("created", f"{record.created_at} ({age(record.created_at)} ago)"),
        ("took", took(record)),
        ("restarts", str(record.restarts)),
        ("logs", record.log_dir),
    ]
    if record.lost_log_bytes:
        facts.append(("lost", f"{record.lost_log_bytes} bytes of logs: the disk had no room"))
    return facts


def first_error(record: Record) -> str:
    """Return the first error by time: what a rank reported, else the end of its stderr."""
    if record.state is not AppState.FAILED:
        return ""
    if record.error != NONE:
        return _readable(record.error)
    failed = [r for r in record.ranks if r.state is AppState.FAILED and r.ended_at]
    if not failed:
        return ""
    first = min(failed, key=lambda rank: rank.ended_at or "")
    log = record.log_path(first) / "stderr.log"
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_LAST_WORDS:])


def _readable(error: str) -> str:
    """Return the message inside an error file; one of unknown shape stays as it is."""
    from torchloom.specs.status_text import read_error

    report = read_error(error)
    return report.message if report else error


def _show_spec(record: Record, as_json: bool) -> None:
    spec: dict[str, Any] = RunFolder.named(record.id).app()
    if as_json:
        echo_json(spec)
        return
    import yaml

    click.echo(yaml.safe_dump(spec, sort_keys=False).rstrip())


def _show_events(record: Record, as_json: bool) -> None:
    events = RunFolder.named(record.id).events()
    if as_json:
        echo_json(events)
        return
    for event in events:
        facts = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("time", "event"))
        click.echo(f"{event['time']}  {event['event']}  {facts}".rstrip())
