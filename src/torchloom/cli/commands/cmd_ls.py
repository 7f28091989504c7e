"""`loom ls`: list jobs, newest first."""

from collections.abc import Callable
from datetime import datetime

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs import job_shapes
from torchloom.cli.jobs.job_shapes import (
    STATES,
    engine_job_shape,
    is_in,
    job_shape,
    lasted,
    paint_state,
)
from torchloom.cli.output import age, echo_json, say, table
from torchloom.client.errors import PlaneLost
from torchloom.launch.records import catalog
from torchloom.runner import job_lookup
from torchloom.schedulers import LOCAL
from torchloom.schedulers.batch import index

_SCREENFUL = 30
_MOST = 1000  # jobs that only the plane knows


@click.command(
    "ls",
    cls=LoomCommand,
    epilog=examples(
        "loom ls --state running",
        "loom ls --all --json",
        "loom ls -s slurm    # the jobs that Slurm reports",
    ),
)
@click.option(
    "-s", "--scheduler", default="local", metavar="ENGINE", help="List the jobs of this engine."
)
@click.option("-cfg", "--scheduler_args", "--scheduler-args", default="", hidden=True)
@click.option(
    "--state",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help="Only jobs in this state, such as running.",
)
@click.option("--limit", type=Number(1), metavar="N", help=f"Number of jobs; default {_SCREENFUL}.")
@click.option("--all", "every", is_flag=True, help="List all jobs.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list; without --limit, of all jobs."
)
@click.option("--as-torchx", is_flag=True, hidden=True)  # `loom list`
def command(
    scheduler: str,
    scheduler_args: str,
    state: str | None,
    limit: int | None,
    every: bool,
    as_json: bool,
    as_torchx: bool,
) -> None:
    """List jobs, newest first."""
    in_words = job_shapes.as_torchx if as_torchx else dict
    if scheduler not in LOCAL:
        _list_engine(scheduler, scheduler_args, as_json, in_words)
        return
    most = limit or (None if every or as_json else _SCREENFUL)
    others = _plane_only_jobs(most or _MOST)  # asked first: a job that begins now is in both
    records = catalog.records()
    ids = {record.id for record in records}
    looked = records[:most] if state is None else records  # only the plane knows some states
    known = job_lookup.live_jobs([record.id for record in looked]) if looked else {}
    found = [job_shape(record, scheduler, known.get(record.id)) for record in looked]
    handles = index.handles()
    found = [{**job, **handles.get(job["id"], {})} for job in found]
    wanted = state.upper() if state else None
    jobs = [job for job in found if wanted is None or is_in(job, wanted)]
    others = [job for job in others if job["id"] not in ids]
    others = [job for job in others if wanted is None or is_in(job, wanted)]
    shown = [in_words(job) for job in sorted([*jobs, *others], key=_time, reverse=True)[:most]]
    if as_json:
        echo_json(shown)
        return
    heads = ("ID", "STATE", "STEP", "AGE", "TOOK", "REASON")
    click.echo(table(heads, map(_row, shown), {"STATE": paint_state}))
    left = (len(records) if wanted is None else len(jobs)) + len(others) - len(shown)
    if left:
        click.echo(f"({left} older: loom ls --all)")


def _plane_only_jobs(most: int) -> list[job_lookup.Live]:
    try:
        return job_shapes.plane_only_jobs(most)
    except PlaneLost as error:
        say(f"{error}; jobs that only the plane knows are not listed")
        return []


def _time(job: job_lookup.Live) -> datetime:
    return datetime.fromisoformat(job["created_at"])


def _row(job: job_lookup.Live) -> tuple[str, ...]:
    step = "-" if job["step"] is None else str(job["step"])
    took = lasted(job["started_at"], job["ended_at"])
    why = "; ".join(filter(None, (job["reason"], job.get("warning"))))
    return job["id"], job["state"], step, age(job["created_at"]), took, why


def _list_engine(
    scheduler: str,
    scheduler_args: str,
    as_json: bool,
    in_words: Callable[[job_lookup.Live], job_lookup.Live],
) -> None:
    """List the jobs that an engine itself reports."""
    from torchloom.runner.api import get_runner

    runner = get_runner()
    apps = runner.list(scheduler, runner.cfg_from_str(scheduler, scheduler_args))
    jobs = [in_words(engine_job_shape(app.app_handle, app.name, app.state)) for app in apps]
    if as_json:
        echo_json(jobs)
        return
    rows = [(job["handle"], job["state"], job["name"]) for job in jobs]
    click.echo(table(("HANDLE", "STATE", "NAME"), rows, {"STATE": paint_state}))
