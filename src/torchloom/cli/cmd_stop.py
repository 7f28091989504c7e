"""`loom stop`: end jobs and say how they ended."""

from collections.abc import Sequence
from typing import Any

import click

from torchloom.cli import live
from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import echo, echo_json
from torchloom.cli.shapes import handle_of, job_shape
from torchloom.cli.steering import in_words
from torchloom.errors import Ambiguous, UserError
from torchloom.launch.record import Record
from torchloom.runner.api import Runner, get_runner
from torchloom.runner.naming import find_job
from torchloom.schedulers.local_scheduler import create_scheduler

REASON = "cancelled_by_user"
_PROMISE = 2.0  # seconds in which ranks agree on a step that may be far
_PATIENCE = 3600.0  # seconds for them to come to it


@click.command("stop", cls=LoomCommand)
@click.argument("jobs", nargs=-1)
@click.option("--now", is_flag=True, help="SIGKILL at once, without grace.")
@click.option("--at", type=Number(0), metavar="STEP", help="After the step before this one.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the job.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(
    jobs: tuple[str, ...], now: bool, at: int | None, reason: str, no_wait: bool, as_json: bool
) -> None:
    """End JOBS: SIGTERM, their grace, SIGKILL. Logs and records stay.

    With --at all ranks end before one and the same step, as if their data had ended there.
    Without JOB the only active one is meant.
    """
    if now and at is not None:
        raise UserError("--now does not wait for a step; leave --at out, or --now")
    found, strangers = _found(jobs or (None,))
    for job in strangers:
        if live.is_of_the_queue(live.job(job) or {}):
            _leave_queue(job, reason, as_json)
            continue
        if now or as_json:
            raise UserError(f"nobody of ours launched {job}: its ranks can only be asked to end")
        _end_at(job, at, reason, no_wait, as_json)
    if not found:
        return
    runner = get_runner()
    if at is None:
        _end(runner, found, reason or REASON, now)
    else:
        for record in found:
            _end_at(record.id, at, reason, no_wait, as_json)
    ended = found if no_wait else [_waited(runner, record) for record in found]
    if as_json:
        echo_json([job_shape(record) for record in ended])
        return
    for before, after in zip(found, ended, strict=True) if at is None or not no_wait else ():
        had = "had already ended: " if before.is_over() else ""
        click.echo(f"{after.id} {had}{after.state.name}")


def _leave_queue(job: str, reason: str, as_json: bool) -> None:
    """Have a job that waits leave the queue."""
    from torchloom.cli import queued

    done = queued.cancel(job, reason)
    if as_json:
        echo_json([done])
    else:
        click.echo(f"{done['id']} {done['state']}")


def _end(runner: Runner, jobs: list[Record], reason: str, now: bool) -> None:
    scheduler = create_scheduler(runner.name())
    for record in jobs:
        scheduler.stop(record.id, reason, at_once=now)


def _found(jobs: Sequence[str | None]) -> tuple[list[Record], list[str]]:
    """Return the runs that are meant, and the jobs that only the plane knows."""
    records, strangers = [], []
    for job in jobs:
        try:
            records.append(find_job(job))
        except UserError as error:
            known = None if isinstance(error, Ambiguous) else live.stranger(job)
            if known is None:
                raise
            strangers.append(known["id"])
    return records, strangers


def _end_at(job: str, at: int | None, reason: str, no_wait: bool, as_json: bool) -> None:
    """Have the ranks of a job agree to end before a step, or the next one they can."""
    from torchloom.client import plane

    facts: dict[str, Any] = {"reason": reason, "wait": _PROMISE if no_wait else _PATIENCE}
    if at is not None:
        facts["at"] = at
    outcome = plane.ask("stop", None, job=job, **facts)
    if not as_json:
        for line in in_words(outcome):
            echo(line)


def _waited(runner: Runner, record: Record) -> Record:
    runner.wait(handle_of(record))
    return find_job(record.id)
