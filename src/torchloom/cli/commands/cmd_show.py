"""`loom show`: show one job: state, reason, ranks, first error."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.jobs import engine, job_shapes
from torchloom.cli.jobs.job_shapes import (
    cold_starts,
    handle_of,
    job_shape,
    paint_state,
    rank_shape,
    start_of,
    took,
)
from torchloom.cli.output import age, echo_json, printable, table, visible
from torchloom.errors import NotFound, UserError
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.runner import job_lookup
from torchloom.runner.api import get_runner
from torchloom.runner.job_lookup import find_job, find_run_or_job
from torchloom.sealed import hide_in_spec
from torchloom.specs.api import NONE, AppState

Words = Callable[[job_lookup.Live], job_lookup.Live]  # state names: ours, or TorchX's
_LAST_LINES = 8  # of the failed rank's output
_TAIL_BYTES = 8192


@click.command(
    "show",
    cls=LoomCommand,
    epilog=examples(
        "loom show gpt",
        "loom show @ --events     # of the newest job",
        "loom show gpt --wait     # exits with 0 if gpt completes",
    ),
)
@click.argument("job", required=False)
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit with 1 unless COMPLETED.")
@click.option("--spec", is_flag=True, help="Print the app as submitted.")
@click.option("--events", is_flag=True, help="Print the events of the job.")
@click.option("--roles", metavar="A,B", help="Only these roles.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--as-torchx", is_flag=True, hidden=True)  # `loom status`
def command(
    job: str | None,
    wait: bool,
    spec: bool,
    events: bool,
    roles: str | None,
    as_json: bool,
    as_torchx: bool,
) -> int:
    """Show one job: its state and why, its ranks, its first error.

    JOB is an id, a prefix of one, a name, a handle, or @ for the newest job. It defaults to the
    only active job.
    """
    handle = engine.handle_of(job)
    in_words = job_shapes.as_torchx if as_torchx else dict
    if handle is not None and not events:
        return engine.show(handle, wait, spec, roles, as_json, in_words)
    job = engine.run_id(handle) if handle is not None else job
    record = find_run_or_job(job)
    if not isinstance(record, RunRecord):  # only the plane knows it
        found = job_shapes.with_both_states(record)
        if job_lookup.is_of_the_queue(found) and not events:
            return _show_queued(found, wait, spec, as_json, in_words)
        if wait or spec or events:
            raise UserError(
                f"{found['id']} was not launched by loom: --wait, --spec and --events do not apply"
            )
        _show_plane_only(in_words(found), as_json)
        return 0
    if wait:
        get_runner().wait(handle_of(record))
        record = find_job(record.id)
    if spec:
        _show_spec(record, as_json)
    elif events:
        _show_events(record, as_json)
    else:
        _show(record, _ranks(record, roles), as_json, in_words)
    return 1 if wait and record.state is not AppState.SUCCEEDED else 0


def _show_queued(
    job: job_lookup.Live, wait: bool, spec: bool, as_json: bool, in_words: Words
) -> int:
    """Show a queued job that has no run yet, or ended without one."""
    from torchloom.cli.submit import queue

    if wait:
        job = job_shapes.with_both_states(queue.waited(job["id"]))
    if spec:
        queue.show_spec(job, as_json)
    else:
        _show_plane_only(in_words(job), as_json)
    return 1 if wait and job["job_state"] != "COMPLETED" else 0


def _show_plane_only(job: job_lookup.Live, as_json: bool) -> None:
    """Show a job that only the plane knows."""
    from torchloom.cli.monitor.answers import job_text, ranks_text

    if as_json:
        ahead = job_shapes.progress(job["step"], job)
        facts = job.pop("facts")
        unknown = {"start": None, "cold_because": "", "exit_code": None}
        ranks = [{**rank, **unknown} for rank in job.pop("ranks")]
        place = {"host": facts.get("host", ""), "log_dir": "", "lost_log_bytes": 0, "error": ""}
        names = rank_shape(RankRecord("", 0, 0, 0), "")
        job |= {**ahead, **place}
        echo_json({**job, "ranks": [{name: r[name] for name in names} for r in ranks]})
        return
    from torchloom.client import plane

    click.echo(job_text(job, plane.ask("knobs", job=job["id"])))
    for name, value in job_shapes.labels(job):
        click.echo(f"{name:<7}{value}")
    click.echo("\n" + ranks_text(job["ranks"]))


def _ranks(record: RunRecord, roles: str | None) -> list[RankRecord]:
    known = list(dict.fromkeys(rank.role for rank in record.ranks))
    wanted = known if roles is None else roles.split(",")
    for role in wanted:
        if role not in known:
            raise NotFound("role", role, known, f"{record.id} has: {', '.join(known)}")
    return [rank for rank in record.ranks if rank.role in wanted]


def _show(record: RunRecord, ranks: list[RankRecord], as_json: bool, in_words: Words) -> None:
    error = first_error(record)
    known = job_lookup.live_job(record.id)
    job = in_words(job_shape(record, live=known))
    if len(ranks) == len(record.ranks):
        ranks = list(job_shapes.with_inner_ranks(record, known))
    lives = {rank: job_shapes.live_rank(known, rank.role, rank.rank) for rank in ranks}
    if as_json:
        place = {"host": record.host, "log_dir": record.log_dir}
        lost = {"lost_log_bytes": record.lost_log_bytes}
        shown = [rank_shape(rank, record.host, lives[rank]) for rank in ranks]
        labels = {"tags": (known or {}).get("tags", []), "notes": (known or {}).get("notes", "")}
        ahead = job_shapes.progress(job["step"], known)
        echo_json({**job, **ahead, **place, **lost, **labels, "error": error, "ranks": shown})
        return
    for name, value in (*_facts(record, job, known), *job_shapes.labels(known)):
        click.echo(f"{name:<9}{value}")
    heads = ("ROLE", "REPLICA", "RANK", "STATE", "STEP", "LAST", "PID", "START", "EXIT", "LOGS")
    click.echo("\n" + table(heads, [_row(rank, lives[rank]) for rank in ranks]))
    if error:
        click.echo(f"\nfirst error:\n{visible(error)}")


def _row(rank: RankRecord, known: job_lookup.Live) -> tuple[str, ...]:
    """Return a rank's row; LAST is the time since its last progress."""
    step, silent = job_shapes.rank_step(rank, known), known.get("silent_seconds")
    pid = rank.process.pid if rank.process else "-"
    code = "-" if rank.exit_code is None else rank.exit_code
    return (
        rank.role,
        str(rank.replica),
        str(rank.rank),
        rank.state.name,
        "-" if step is None else str(step),
        "-" if silent is None else f"{silent:.1f}s",
        str(pid),
        start_of(rank)[0] or "-",
        str(code),
        rank.logs,
    )


def _facts(
    record: RunRecord, job: job_lookup.Live, known: job_lookup.Live | None
) -> list[tuple[str, str]]:
    why = f"  {printable(job['reason'])}" if job["reason"] else ""
    facts = [
        ("id", record.id),
        ("handle", handle_of(record)),
        ("state", paint_state(job["state"]) + why),
        ("created", f"{record.created_at} ({age(record.created_at)} ago)"),
        ("took", took(record)),
        ("restarts", str(record.restarts)),
        ("logs", record.log_dir),
    ]
    if job["step"] is not None:
        ahead = job_shapes.progress(job["step"], known)
        facts.insert(3, ("step", job_shapes.progress_words(job["step"], **ahead)))
    if why := cold_starts(record):
        facts.append(("start", printable(why)))
    if job["warning"]:
        facts.insert(3, ("warning", printable(job["warning"])))
    if record.lost_log_bytes:
        facts.append(("lost", f"{record.lost_log_bytes} bytes of logs: the disk was full"))
    return facts


def first_error(record: RunRecord) -> str:
    """Return the first error: the report of a rank, else the end of its stderr."""
    if record.state is not AppState.FAILED:
        return ""
    if record.error != NONE:
        return _readable(record.error)
    report = record.first_error
    if text := report.get("traceback") or (report.get("message") if "last_lines" in report else ""):
        last = report.get("last_lines")
        more = f"\nthe last lines of its output:\n{last}" if last else ""
        return f"[rank{report.get('rank')}]: {text}".rstrip() + more
    failed = [r for r in record.ranks if r.state is AppState.FAILED and r.ended_at]
    if not failed:
        return ""
    first = min(failed, key=lambda rank: rank.ended_at or "")
    return _last_lines(record.log_path(first))


def _last_lines(logs: Path) -> str:
    """Return the end of a rank's stderr; a rank with its own terminal only has stdout."""
    for name in ("stderr.log", "stdout.log"):
        with contextlib.suppress(OSError), open(logs / name, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            if lines := file.read().decode(errors="replace").splitlines():
                return "\n".join(lines[-_LAST_LINES:])
    return ""


def _readable(error: str) -> str:
    """Return the message of an error file; text of another format is returned unchanged."""
    from torchloom.specs.status import read_error

    report = read_error(error)
    return report.message if report else error


def _show_spec(record: RunRecord, as_json: bool) -> None:
    spec: dict[str, Any] = hide_in_spec(RunFolder.named(record.id).app())
    if as_json:
        echo_json(spec)
        return
    import yaml

    click.echo(yaml.safe_dump(spec, sort_keys=False).rstrip())


def _show_events(record: RunRecord, as_json: bool) -> None:
    events = RunFolder.named(record.id).events()
    if as_json:
        echo_json(events)
        return
    for event in events:
        time, kind = event.pop("time"), event.pop("event")
        facts = " ".join(f"{name}={value}" for name, value in event.items() if value != "")
        click.echo(printable(f"{time}  {kind}  {facts}").rstrip())
