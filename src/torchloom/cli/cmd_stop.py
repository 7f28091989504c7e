"""`loom stop`: end jobs and say how they ended."""

import click

from torchloom.cli.output import echo_json, job_shape
from torchloom.launch.record import Record
from torchloom.runner.api import get_runner
from torchloom.runner.naming import find_job
from torchloom.schedulers.local_scheduler import create_scheduler


@click.command("stop")
@click.argument("jobs", nargs=-1)
@click.option("--now", is_flag=True, help="SIGKILL at once, without grace.")
@click.option("--reason", help="Why; it is kept with the job.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print a list.")
def command(
    jobs: tuple[str, ...], now: bool, reason: str | None, no_wait: bool, as_json: bool
) -> None:
    """End JOBS: SIGTERM, their grace, SIGKILL. Logs and records stay. Without JOB, the only one."""
    found = [find_job(job) for job in (jobs or (None,))]
    before = {record.id: record.is_over() for record in found}
    scheduler = create_scheduler(get_runner().name())
    for record in found:
        scheduler.stop(record.id, reason or "cancelled_by_user", at_once=now)
    ended = found if no_wait else [_waited(record) for record in found]
    if as_json:
        echo_json([job_shape(record) for record in ended])
        return
    for record in ended:
        had = "had already ended: " if before[record.id] else ""
        click.echo(f"{record.id} {had}{record.state.name}")


def _waited(record: Record) -> Record:
    get_runner().wait(job_shape(record)["handle"])
    return find_job(record.id)
