"""`loom rm`: remove ended jobs."""

import sys

import click

from torchloom.cli.output import echo_json
from torchloom.errors import UserError
from torchloom.launch import catalog
from torchloom.launch.record import Record
from torchloom.runner.naming import find_job
from torchloom.schedulers.local_scheduler import create_scheduler


@click.command("rm")
@click.argument("jobs", nargs=-1)
@click.option("--ended", is_flag=True, help="All jobs that are over.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the removed ids as a list.")
def command(jobs: tuple[str, ...], ended: bool, yes: bool, as_json: bool) -> None:
    """Remove JOBS with their records and logs. One that runs must be stopped first."""
    found = [find_job(job) for job in jobs]
    if ended:
        found += [record for record in catalog.records() if record.is_over()]
    elif not jobs:
        raise UserError("name the jobs to remove, or --ended for all that are over")
    _agree(found, sure=yes or not ended)
    scheduler = create_scheduler("torchx")
    for record in {record.id: record for record in found}.values():
        scheduler.delete(record.id)
        if not as_json:
            click.echo(f"{record.id} removed")
    if as_json:
        echo_json(list(dict.fromkeys(record.id for record in found)))


def _agree(found: list[Record], sure: bool) -> None:
    if sure or not found:
        return
    if not sys.stdin.isatty():
        raise UserError(f"this removes {len(found)} jobs; say --yes where nobody can be asked")
    click.confirm(f"remove {len(found)} jobs with their logs?", abort=True)
