"""`loom ls`: jobs, newest first."""

import click

from torchloom.cli import live
from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import age, echo_json, table
from torchloom.cli.shapes import engine_job_shape, job_shape, state_of, took
from torchloom.launch import catalog
from torchloom.launch.record import Record
from torchloom.schedulers import LOCAL
from torchloom.specs.api import AppState

_SCREENFUL = 30


@click.command("ls", cls=LoomCommand)
@click.option("-s", "--scheduler", default="local", metavar="ENGINE", help="Ask this engine.")
@click.option("-cfg", "--scheduler_args", "--scheduler-args", default="", hidden=True)
@click.option(
    "--state",
    type=click.Choice([state.name for state in AppState], case_sensitive=False),
    metavar="STATE",
    help="Only jobs in this state, such as running.",
)
@click.option("--limit", type=Number(1), metavar="N", help=f"How many; default {_SCREENFUL}.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.option("--json", "as_json", is_flag=True, help="Print a list; all unless --limit says less.")
def command(
    scheduler: str,
    scheduler_args: str,
    state: str | None,
    limit: int | None,
    every: bool,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    if scheduler not in LOCAL:
        _list_engine(scheduler, scheduler_args, as_json)
        return
    records = [r for r in catalog.records() if state is None or r.state.name == state.upper()]
    shown = records[: limit or (None if every or as_json else _SCREENFUL)]
    known = {} if all(record.is_over() for record in shown) else live.jobs()
    if as_json:
        echo_json([job_shape(record, scheduler, known.get(record.id)) for record in shown])
        return
    rows = [_row(record, known.get(record.id)) for record in shown]
    click.echo(table(("ID", "STATE", "STEP", "AGE", "TOOK", "REASON"), rows))
    if len(shown) < len(records):
        click.echo(f"({len(records) - len(shown)} older: loom ls --all)")


def _row(record: Record, known: live.Live | None) -> tuple[str, ...]:
    step = "-" if known is None or known["step"] is None else str(known["step"])
    state = state_of(record, known)
    return record.id, state, step, age(record.created_at), took(record), record.reason


def _list_engine(scheduler: str, scheduler_args: str, as_json: bool) -> None:
    """List what an engine knows in its own words."""
    from torchloom.runner.api import get_runner

    runner = get_runner()
    apps = runner.list(scheduler, runner.cfg_from_str(scheduler, scheduler_args))
    if as_json:
        echo_json([engine_job_shape(a.app_handle, a.name, a.state) for a in apps])
        return
    rows = [(app.app_handle, app.state.name, app.name) for app in apps]
    click.echo(table(("HANDLE", "STATE", "NAME"), rows))
