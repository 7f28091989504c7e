"""`loom pause`: have all ranks of a job wait at one step."""

from typing import Any

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.steering import tell


@click.command("pause", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("--release", is_flag=True, help="Save, end the ranks, give back what they have.")
@click.option("--at", type=Number(0), metavar="STEP", help="Not before this step.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the pause.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(job: str, release: bool, at: int | None, reason: str, as_json: bool) -> None:
    """Have all ranks of JOB wait before one and the same step; `loom resume` goes on.

    Processes and devices are kept; with --release the ranks save at that step and end, others may
    have their devices, and `loom resume` queues the job again. Without JOB the only active one is
    meant.
    """
    from torchloom.client import chosen

    asked: dict[str, Any] = {"reason": reason} if at is None else {"reason": reason, "at": at}
    if release:
        asked["release"] = True
    tell(chosen.ask("pause", None, job=job, **asked), as_json)
