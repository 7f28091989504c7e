"""`loom tracker`: what trackers know of runs, as `torchx tracker` prints it."""

from typing import TYPE_CHECKING

import click

from torchloom.cli.command import LoomCommand, LoomGroup, examples
from torchloom.cli.output import echo_json, table
from torchloom.errors import UserError

if TYPE_CHECKING:
    from torchloom.torchx.tracker import TrackerBase


@click.group(
    "tracker",
    cls=LoomGroup,
    epilog=examples("loom tracker list jobs", "loom tracker list metadata @"),
)
def command() -> None:
    """Print what a tracker knows of runs."""


@command.group("list", cls=LoomGroup, epilog=examples("loom tracker list jobs"))
def tracked() -> None:
    """List runs, or what is known of one."""


@tracked.command("jobs", cls=LoomCommand, epilog=examples("loom tracker list jobs"))
@click.option("--parent-run-id", metavar="RUN", help="Only runs that were made from this one.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def jobs(parent_run_id: str | None, as_json: bool) -> None:
    """List the runs that the tracker knows."""
    wanted = {"parent_run_id": parent_run_id} if parent_run_id else {}
    found = list(_tracker().run_ids(**wanted))
    if as_json:
        echo_json(found)
        return
    click.echo(table(("JOB ID",), [(each,) for each in found]))


@tracked.command("metadata", cls=LoomCommand, epilog=examples("loom tracker list metadata @"))
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def metadata(run: str, as_json: bool) -> None:
    """List the facts about RUN."""
    found = dict(_tracker().metadata(_meant(run)))
    if as_json:
        echo_json(found)
        return
    click.echo(table(("ID", "VALUE"), [(key, str(value)) for key, value in found.items()]))


@tracked.command("artifacts", cls=LoomCommand, epilog=examples("loom tracker list artifacts @"))
@click.argument("run")
@click.option("--artifact", metavar="NAME", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def artifacts(run: str, artifact: str | None, as_json: bool) -> None:
    """List the artifacts of RUN."""
    every = _tracker().artifacts(_meant(run)).values()
    found = [each for each in every if artifact in (None, each.name)]
    if as_json:
        echo_json([vars(each) for each in found])
        return
    rows = [(each.name, each.path, str(each.metadata or "")) for each in found]
    click.echo(table(("ARTIFACT", "PATH", "METADATA"), rows))


@tracked.command("lineage", cls=LoomCommand, epilog=examples("loom tracker list lineage @"))
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def lineage(run: str, as_json: bool) -> None:
    """List what RUN was made from, and what was made from it."""
    found = _tracker().lineage(_meant(run))
    sources = [vars(each) for each in found.sources]
    if as_json:
        echo_json({"sources": sources, "descendants": found.descendants})
        return
    rows = [("source", each.source_run_id, each.artifact_name or "") for each in found.sources]
    rows += [("descendant", each, "") for each in found.descendants]
    click.echo(table(("KIND", "RUN", "ARTIFACT"), rows))


def _tracker() -> "TrackerBase":
    """Return the first tracker of the config files; without any, that of our own runs."""
    from torchloom.runner.api import get_configured_trackers
    from torchloom.torchx.tracker import OWN, build_trackers

    name, config = next(iter(get_configured_trackers().items()), (OWN, None))
    made = list(build_trackers({name: config}))
    if not made:
        raise UserError(f"[torchx:tracker] names {name!r}, which does not exist: correct it")
    return made[0]


def _meant(run: str) -> str:
    """Return the run's handle if it is one of ours; a tracker may know others."""
    from torchloom.cli.jobs.job_shapes import handle_of
    from torchloom.errors import NotFound
    from torchloom.runner.job_lookup import find_job

    if "://" in run:
        return run
    try:
        return handle_of(find_job(run))
    except NotFound:
        return run
