"""`loom resize`: go on with more ranks, or with fewer."""

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.jobs.control import settle, tell
from torchloom.errors import UserError


@click.command("resize", cls=LoomCommand)
@click.argument("words", nargs=-1, metavar="[JOB] N")
@click.option("--at", type=Number(0), metavar="STEP", help="Not before this step.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the command.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(words: tuple[str, ...], at: int | None, reason: str, as_json: bool) -> None:
    """Have JOB go on with N ranks: all save at one step and end, and N go on at it.

    It is a new attempt of the same run; a job of the queue waits for its place again. It is not
    bit-exact, and each sample is seen once. Without JOB the only active one is meant.
    """
    job, ranks = _meant(words)
    asked = {"job": job, "workers": ranks, "reason": reason}
    tell(settle("resize", **asked, **({} if at is None else {"at": at})), as_json)


def _meant(words: tuple[str, ...]) -> tuple[str, int]:
    *jobs, count = words or ("",)
    if len(jobs) > 1 or not count.isdecimal() or not int(count[:9]) >= 1:
        raise UserError("write how many ranks it is to have: loom resize [JOB] N")
    return (jobs[0] if jobs else ""), int(count)
