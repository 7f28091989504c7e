"""`loom rm`: remove ended jobs."""

import time

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.jobs import engine
from torchloom.cli.jobs.job_shapes import state_of
from torchloom.cli.output import agree, echo_json, is_attended
from torchloom.errors import UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.runner import job_lookup
from torchloom.runner.job_lookup import find_run_or_job
from torchloom.schedulers.local_scheduler import create_scheduler

_ENDS = ("COMPLETED", "FAILED", "CANCELLED")
_NAMED = 5  # jobs that a question names one by one
_NEWS, _POLL = 10.0, 0.05  # seconds for the plane to learn of an end, and between two checks


@click.command("rm", cls=LoomCommand, epilog=examples("loom rm gpt", "loom rm --ended --yes"))
@click.argument("jobs", nargs=-1)
@click.option("--ended", is_flag=True, help="Remove all jobs that have ended.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print the removed ids as a JSON list.")
def command(jobs: tuple[str, ...], ended: bool, yes: bool, as_json: bool) -> None:
    """Remove JOBS: their records, logs, checkpoints and data on the plane.

    Asks for confirmation on a terminal. A running job must be stopped first.
    """
    if not jobs and not ended:
        raise UserError("name the jobs to remove, or give --ended for all that have ended")
    elsewhere = {job: handle for job in jobs if (handle := engine.handle_of(job))}
    jobs = tuple(job for job in jobs if job not in elsewhere)
    has_plane = _wake_plane()
    named = [_named(job) for job in jobs]
    over = [record.id for record in catalog.records() if record.is_over()] if ended else []
    known = job_lookup.live_jobs([*named, *over]) if has_plane else {}
    states = {job: _state(job, known) for job in (*named, *over)}
    _refuse_active({job: states[job] for job in named})
    gone = [job for job, state in states.items() if state in _ENDS]
    if not yes:
        _agree([*elsewhere.values(), *gone], ended)
    engine.remove(list(elsewhere.values()))
    for handle in elsewhere.values() if not as_json else ():
        click.echo(f"{handle} removed")
    for job in gone:
        _remove(job, job in known)
        if not as_json:
            click.echo(f"{job} removed")
    if as_json:
        echo_json([*elsewhere.values(), *gone])


def _named(job: str) -> str:
    """Return the id of a job that has a run, or that only the plane knows."""
    found = find_run_or_job(job)
    return found.id if isinstance(found, RunRecord) else str(found["id"])


def _state(job: str, known: dict[str, job_lookup.Live]) -> str:
    record: RunRecord | None = catalog.record(job)
    if record is not None:
        return state_of(record, known.get(job))
    return str(known[job]["state"])


def _refuse_active(states: dict[str, str]) -> None:
    """Refuse active jobs before any job is removed: a failed command changes nothing."""
    for job, state in states.items():
        if state not in _ENDS:
            raise UserError(f"{job} is {state}; stop it first: `loom stop {job}`")


def _wake_plane() -> bool:
    """Start the plane if this user has ever had one: it stores most of a job's data."""
    from torchloom.client import plane

    if not settings.wants_plane() or not (settings.loom_home() / "plane").is_dir():
        return False
    return plane.find_or_start() is not None


def _remove(job: str, is_known: bool) -> None:
    """Remove a job's folder once the plane knows that the job has ended, then its plane data."""
    from torchloom.client import plane

    deadline = time.monotonic() + _NEWS
    while is_known and (job_lookup.live_job(job) or {}).get("state") not in _ENDS:
        if time.monotonic() > deadline:
            raise UserError(f"the plane does not know yet that {job} has ended; try again")
        time.sleep(_POLL)
    create_scheduler("torchx").delete(job)
    if is_known:
        plane.ask("remove", job=job, author=settings.user_name())


def _agree(jobs: list[str], is_all: bool) -> None:
    """Ask for confirmation on a terminal; without one, `--ended` needs `--yes`."""
    if not jobs:
        return
    if is_attended():
        what = ", ".join(jobs) if len(jobs) <= _NAMED else f"{len(jobs)} jobs"
        agree(f"remove {what} with logs and checkpoints?", "nothing was removed")
    elif is_all:
        many = f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}"
        raise UserError(f"this removes {many}; without a terminal, confirm with --yes")
