"""`loom resume`: go on with a paused job."""

import click

from torchloom.cli.command import LoomCommand
from torchloom.cli.steering import tell


@click.command("resume", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("--reason", default="", metavar="WHY", help="Kept with the command.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(job: str, reason: str, as_json: bool) -> None:
    """Go on with JOB, which `loom pause` holds.

    Without JOB the only active one is meant.
    """
    from torchloom.client import chosen

    tell(chosen.ask("resume", None, job=job, reason=reason), as_json)
