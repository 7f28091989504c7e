"""`loom pause`: have all ranks of a job wait at one step."""

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.jobs.control import WAIT, ask, tell


@click.command("pause", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("--release", is_flag=True, help="Save, end the ranks, give back what they have.")
@click.option("--at", type=Number(0), metavar="STEP", help="Not before this step.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the pause.")
@click.option("--wait", type=click.FloatRange(0), metavar="SECONDS", help=WAIT)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(
    job: str, release: bool, at: int | None, reason: str, wait: float | None, as_json: bool
) -> None:
    """Have all ranks of JOB wait before one and the same step; `loom resume` goes on.

    Processes and devices are kept; with --release the ranks save at that step and end, others may
    have their devices, and `loom resume` queues the job again. Without JOB the only active one is
    meant.
    """
    wishes = {"reason": reason, "at": at, "release": release or None, "wait": wait}
    tell(ask("pause", job=job, **wishes), as_json)
