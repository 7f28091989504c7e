"""`loom stop`: end jobs and say how they ended."""

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo_json
from torchloom.cli.shapes import handle_of, job_shape
from torchloom.launch.record import Record
from torchloom.runner.api import Runner, get_runner
from torchloom.runner.naming import find_job
from torchloom.schedulers.local_scheduler import create_scheduler


@click.command("stop", cls=LoomCommand)
@click.argument("jobs", nargs=-1)
@click.option("--now", is_flag=True, help="SIGKILL at once, without grace.")
@click.option("--reason", default="cancelled_by_user", metavar="WHY", help="Kept with the job.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(jobs: tuple[str, ...], now: bool, reason: str, no_wait: bool, as_json: bool) -> None:
    """End JOBS: SIGTERM, their grace, SIGKILL. Logs and records stay.

    Without JOB the only active one is meant.
    """
    found = [find_job(job) for job in (jobs or (None,))]
    runner = get_runner()
    scheduler = create_scheduler(runner.name())
    for record in found:
        scheduler.stop(record.id, reason, at_once=now)
    ended = found if no_wait else [_waited(runner, record) for record in found]
    if as_json:
        echo_json([job_shape(record) for record in ended])
        return
    for before, after in zip(found, ended, strict=True):
        had = "had already ended: " if before.is_over() else ""
        click.echo(f"{after.id} {had}{after.state.name}")


def _waited(runner: Runner, record: Record) -> Record:
    runner.wait(handle_of(record))
    return find_job(record.id)
