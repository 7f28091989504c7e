"""`loom checkpoint`: have all ranks of a job save at one step."""

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.steering import tell


@click.command("checkpoint", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("--at", type=Number(0), metavar="STEP", help="Not before this step.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the command.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(job: str, at: int | None, reason: str, as_json: bool) -> None:
    """Have all ranks of JOB save before one and the same step.

    The program says how, by `run.on("checkpoint", save)`. Without JOB the only active one is meant.
    """
    from torchloom.client import chosen

    asked = {"reason": reason} if at is None else {"reason": reason, "at": at}
    tell(chosen.ask("checkpoint", None, job=job, **asked), as_json)
