"""`loom resume`: go on with a job that is paused, or that has ended."""

from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand, Number
from torchloom.cli.steering import tell

if TYPE_CHECKING:
    from torchloom.cli.going_on import Resumption
    from torchloom.launch.record import Record


@click.command("resume", cls=LoomCommand)
@click.argument("job", required=False, default="")
@click.option("-n", "workers", type=Number(1), metavar="N", help="With so many from now on.")
@click.option("--from", "step", type=Number(0), metavar="STEP", help="From its checkpoint of then.")
@click.option("-d", "--detach", is_flag=True, help="Do not follow it.")
@click.option("--reason", default="", metavar="WHY", help="Kept with the command.")
@click.option("--json", "as_json", is_flag=True, help="Print an object; implies -d.")
def command(
    job: str, workers: int | None, step: int | None, detach: bool, reason: str, as_json: bool
) -> int:
    """Go on with JOB: a paused one at its next step, one that has ended from its last checkpoint.

    One that has ended, for whatever reason, goes on as a new attempt of the same run; it is
    followed as `run` does. --from leaves newer checkpoints aside. Without JOB the only active one
    is meant.
    """
    from torchloom.client import chosen

    asked = {"job": job, "workers": workers, "from_step": step, "reason": reason}
    asked = {name: value for name, value in asked.items() if value is not None}
    record = None if chosen.is_elsewhere() else _ended(job)
    if record is None:
        tell(chosen.ask("resume", None, **asked), as_json)
        return 0
    going = _resumption(record, {**asked, "job": record.id})
    if not (detach or as_json):
        return going.follow()
    going.submit_json() if as_json else going.submit()
    return 0


def _ended(job: str) -> "Record | None":
    """Return the run that is meant if it is over; the plane knows about all others."""
    from torchloom.errors import Ambiguous, UserError
    from torchloom.runner.naming import find_job

    try:
        record = find_job(job) if job else None
    except Ambiguous:
        raise
    except UserError:  # it waits in the queue, or has never had a run
        return None
    return record if record is not None and record.is_over() else None


def _resumption(record: "Record", asked: dict[str, Any]) -> "Resumption":
    from torchloom.cli import going_on
    from torchloom.client import plane
    from torchloom.runner.api import get_runner
    from torchloom.schedulers.local_scheduler import create_scheduler

    runner = get_runner()
    scheduler = create_scheduler(runner.name())
    if _is_of_the_queue(record.id):
        info = scheduler.resume_dryrun(record.id, None, asked.get("from_step"))
        begin = lambda: plane.ask("resume", None, **asked)  # noqa: E731
        return going_on.Resumption(runner, scheduler, info, begin)
    info = scheduler.resume_dryrun(record.id, asked.get("workers"), asked.get("from_step"))
    going_on.committed(record.id)
    return going_on.Resumption(runner, scheduler, info)


def _is_of_the_queue(job: str) -> bool:
    """Tell whether a job goes through the queue of this user's plane, which is started for that."""
    from torchloom.cli import live
    from torchloom.client import plane
    from torchloom.settings import wants_plane

    if not wants_plane():
        return False
    plane.find_or_start()
    return live.is_of_the_queue(live.job(job) or {})
