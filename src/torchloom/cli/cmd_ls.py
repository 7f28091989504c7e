"""`loom ls`: jobs, newest first."""

from typing import Any

import click

from torchloom.cli.output import age, echo_json, job_shape, table, took
from torchloom.launch import catalog
from torchloom.specs.api import AppState

_SCREENFUL = 30


@click.command("ls")
@click.option("-s", "--scheduler", default="local", help="Ask this engine.")
@click.option("-cfg", "--scheduler_args", "--scheduler-args", hidden=True)
@click.option(
    "--state",
    type=click.Choice([state.name for state in AppState], case_sensitive=False),
    help="Only jobs in this state.",
)
@click.option("--limit", type=click.IntRange(1), help=f"How many; default {_SCREENFUL}.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.option("--json", "as_json", is_flag=True, help="Print a list; all unless --limit says less.")
def command(
    scheduler: str,
    scheduler_args: str | None,
    state: str | None,
    limit: int | None,
    every: bool,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    if scheduler not in ("local", "local_cwd"):
        _list_engine(scheduler, as_json)
        return
    records = [r for r in catalog.records() if state is None or r.state.name == state.upper()]
    shown = records[: limit or (None if every or as_json else _SCREENFUL)]
    if as_json:
        echo_json([job_shape(record, scheduler) for record in shown])
        return
    rows = [(r.id, r.state.name, age(r.created_at), took(r), r.reason) for r in shown]
    click.echo(table(("ID", "STATE", "AGE", "TOOK", "REASON"), rows))
    if len(shown) < len(records):
        click.echo(f"({len(records) - len(shown)} older: loom ls --all)")


def _list_engine(scheduler: str, as_json: bool) -> None:
    """List what an engine knows in its own words."""
    from torchloom.runner.api import get_runner

    apps: list[Any] = get_runner().list(scheduler)
    if as_json:
        keys = ("app_id", "name", "app_handle")
        echo_json([{**{k: getattr(a, k) for k in keys}, "state": a.state.name} for a in apps])
        return
    click.echo(
        table(("HANDLE", "STATE", "NAME"), [(a.app_handle, a.state.name, a.name) for a in apps])
    )
