"""`loom ls`: jobs, newest first."""

from datetime import datetime

import click

from torchloom.cli import live
from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.output import age, echo_json, table
from torchloom.cli.shapes import engine_job_shape, job_shape, lasted, paint_state
from torchloom.launch import catalog
from torchloom.schedulers import LOCAL
from torchloom.schedulers.batch import index
from torchloom.specs.api import AppState

_SCREENFUL = 30
_FINER = ("QUEUED", "PAUSED", "RECOVERING")  # what only the plane tells
_MOST = 1000  # jobs that nobody of ours launched


@click.command("ls", cls=LoomCommand)
@click.option("-s", "--scheduler", default="local", metavar="ENGINE", help="Ask this engine.")
@click.option("-cfg", "--scheduler_args", "--scheduler-args", default="", hidden=True)
@click.option(
    "--state",
    type=click.Choice([*(state.name for state in AppState), *_FINER], case_sensitive=False),
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
    records, most = catalog.records(), limit or (None if every or as_json else _SCREENFUL)
    looked = records[:most] if state is None else records  # the plane knows finer states
    known = live.jobs([record.id for record in looked]) if looked else {}
    found = [job_shape(record, scheduler, known.get(record.id)) for record in looked]
    handles = index.handles()
    found = [{**job, **handles.get(job["id"], {})} for job in found]
    wanted = state.upper() if state else None
    jobs = [job for job in found if wanted in (None, job["state"])]
    others = [j for j in live.strangers(most or _MOST) if wanted in (None, j["state"])]
    shown = sorted([*jobs, *others], key=_time, reverse=True)[:most]
    if as_json:
        echo_json(shown)
        return
    heads = ("ID", "STATE", "STEP", "AGE", "TOOK", "REASON")
    click.echo(table(heads, map(_row, shown), {"STATE": paint_state}))
    left = (len(records) if wanted is None else len(jobs)) + len(others) - len(shown)
    if left:
        click.echo(f"({left} older: loom ls --all)")


def _time(job: live.Live) -> datetime:
    return datetime.fromisoformat(job["created_at"])


def _row(job: live.Live) -> tuple[str, ...]:
    step = "-" if job["step"] is None else str(job["step"])
    took = lasted(job["started_at"], job["ended_at"])
    why = "; ".join(filter(None, (job["reason"], job.get("warning"))))
    return job["id"], job["state"], step, age(job["created_at"]), took, why


def _list_engine(scheduler: str, scheduler_args: str, as_json: bool) -> None:
    """List what an engine knows in its own words."""
    from torchloom.runner.api import get_runner

    runner = get_runner()
    apps = runner.list(scheduler, runner.cfg_from_str(scheduler, scheduler_args))
    if as_json:
        echo_json([engine_job_shape(a.app_handle, a.name, a.state) for a in apps])
        return
    rows = [(app.app_handle, app.state.name, app.name) for app in apps]
    click.echo(table(("HANDLE", "STATE", "NAME"), rows, {"STATE": paint_state}))
