"""`loom rm`: remove ended jobs."""

import sys

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.output import echo_json
from torchloom.errors import UserError
from torchloom.launch import catalog
from torchloom.launch.record import Record
from torchloom.runner.naming import find_job
from torchloom.schedulers.local_scheduler import create_scheduler


@click.command("rm", cls=LoomCommand)
@click.argument("jobs", nargs=-1)
@click.option("--ended", is_flag=True, help="All jobs that are over.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the removed ids as a list.")
def command(jobs: tuple[str, ...], ended: bool, yes: bool, as_json: bool) -> None:
    """Remove JOBS with their records and logs. One that runs must be stopped first."""
    if not jobs and not ended:
        raise UserError("name the jobs to remove, or --ended for all that are over")
    named = [find_job(job) for job in jobs]
    over = [record for record in catalog.records() if record.is_over()] if ended else []
    found = {record.id: record for record in (*named, *over)}
    _refuse_active(list(found.values()))
    _agree(len(found), sure=yes or not ended)
    scheduler = create_scheduler("torchx")
    for job in found:
        scheduler.delete(job)
        if not as_json:
            click.echo(f"{job} removed")
    if as_json:
        echo_json(list(found))


def _refuse_active(found: list[Record]) -> None:
    """Refuse before any is removed: a command that fails has changed nothing."""
    for record in found:
        if not record.is_over():
            remedy = f"stop it first: `loom stop {record.id}`"
            raise UserError(f"{record.id} is {record.state.name}; {remedy}")


def _agree(many: int, sure: bool) -> None:
    if sure or not many:
        return
    if not sys.stdin.isatty():
        raise UserError(f"this removes {many} jobs; say --yes where nobody can be asked")
    click.confirm(f"remove {many} jobs with their logs?", abort=True)
