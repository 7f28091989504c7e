"""`loom resize`: restart a job from a checkpoint with more or fewer ranks."""

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs.control import settle, show_outcome
from torchloom.errors import UserError


@click.command(
    "resize",
    cls=LoomCommand,
    epilog=examples("loom resize gpt 8", 'loom resize gpt 2 --at 5000 --reason "make room"'),
)
@click.argument("words", nargs=-1, metavar="[JOB] N")
@click.option("--at", type=Number(0), metavar="STEP", help="Earliest step to restart at.")
@click.option("--reason", default="", metavar="WHY", help="Recorded in the audit log.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(words: tuple[str, ...], at: int | None, reason: str, as_json: bool) -> None:
    """Continue JOB with N ranks: all ranks save at one step and end, then N ranks resume there.

    This is a new attempt of the same run; a queued job waits for resources again. The result is
    not bit-exact, but each sample is seen once. JOB defaults to the only active job.
    """
    job, ranks = _meant(words)
    asked = {"job": job, "workers": ranks, "reason": reason}
    show_outcome(settle("resize", **asked, **({} if at is None else {"at": at})), as_json)


def _meant(words: tuple[str, ...]) -> tuple[str, int]:
    *jobs, count = words or ("",)
    if len(jobs) > 1 or not count.isdecimal() or not int(count[:9]) >= 1:
        raise UserError("give the number of ranks: loom resize [JOB] N")
    return (jobs[0] if jobs else ""), int(count)
