"""`loom resume`: continue a job that is paused or has ended."""

import sys
from typing import TYPE_CHECKING, Any

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.jobs.control import settle, show_outcome

if TYPE_CHECKING:
    from torchloom.cli.submit.submission import Resumption
    from torchloom.errors import LoomError
    from torchloom.launch.records.record import RunRecord


@click.command(
    "resume",
    cls=LoomCommand,
    epilog=examples(
        "loom resume gpt",
        "loom resume gpt -n 2 -d               # with two ranks, in the background",
        "loom resume gpt --from 2000           # ignores newer checkpoints",
    ),
)
@click.argument("job", required=False, default="")
@click.option("-n", "workers", type=Number(1), metavar="N", help="New number of ranks.")
@click.option("--strategy", metavar="NAME", help="Another strategy, such as fsdp.")
@click.option("--mesh", metavar="SIZES", help="Another mesh, such as dp_shard=2,tp=2.")
@click.option("--from", "step", type=Number(0), metavar="STEP", help="Resume from this checkpoint.")
@click.option("--until", type=Number(1), metavar="STEP", help="Train up to this step.")
@click.option("--from-scratch", is_flag=True, help="Start over if there is no checkpoint.")
@click.option("-d", "--detach", is_flag=True, help="Do not follow the job.")
@click.option("--reason", default="", metavar="WHY", help="Recorded in the audit log.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; implies -d.")
def command(
    job: str,
    workers: int | None,
    strategy: str | None,
    mesh: str | None,
    step: int | None,
    until: int | None,
    from_scratch: bool,
    detach: bool,
    reason: str,
    as_json: bool,
) -> int:
    """Continue JOB: a paused job at its next step, an ended job from its last checkpoint.

    An ended job continues as a new attempt of the same run and is followed as by `run`. --from
    ignores newer checkpoints. A job without a checkpoint starts over only with --from-scratch, or
    after confirmation. A COMPLETED job needs --until, which extends it (for programs that loop
    over `run.steps`), or --from. --strategy and --mesh change `distributed` of a job file. JOB
    defaults to the only active job.
    """
    from torchloom.errors import LoomError

    options: dict[str, Any] = {
        "workers": workers,
        "from_step": step,
        "until": until,
        "reason": reason,
    }
    options |= {"distributed": _arrangement(strategy, mesh)}
    asked = {"job": job, **{name: value for name, value in options.items() if value is not None}}
    try:
        return _resume({**asked, "from_scratch": from_scratch}, detach, as_json)
    except LoomError as error:
        if not _may_start_over(error):
            raise
    return _resume({**asked, "from_scratch": True}, detach, as_json)


def _arrangement(strategy: str | None, mesh: str | None) -> dict[str, Any] | None:
    """Parse `--strategy NAME` and `--mesh dp_shard=2,tp=2`."""
    from torchloom.errors import UserError

    found: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
    if mesh is not None:
        pairs = [word.partition("=") for word in mesh.split(",")]
        if not all(size.isdecimal() and len(size) < 7 for _, _, size in pairs):
            raise UserError(f"--mesh {mesh!r}: give sizes by name, such as dp_shard=2,tp=2")
        found["mesh"] = {name.strip(): int(size) for name, _, size in pairs}
    return found or None


def _may_start_over(refusal: "LoomError") -> bool:
    """Ask on a terminal whether a job without a checkpoint shall start over."""
    from torchloom.launch.records.resumption import NoCheckpoint

    if refusal.code != NoCheckpoint.code or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    why = str(refusal).partition(";")[0]
    return click.confirm(f"{why}. Start over?", abort=True, err=True)


def _resume(asked: dict[str, Any], detach: bool, as_json: bool) -> int:
    from torchloom.client import chosen

    record = None if chosen.is_elsewhere() else _run_of(asked["job"])
    if record is None or not record.is_over():
        show_outcome(settle("resume", **asked, unpause=_is_active(asked["job"], record)), as_json)
        return 0
    resumption = _resumption(record, {**asked, "job": record.id})
    if not (detach or as_json):
        return resumption.follow()
    resumption.submit_json() if as_json else resumption.submit()
    return 0


def _run_of(job: str) -> "RunRecord | None":
    """Return the run of a job, if it has one; the plane knows the other jobs."""
    from torchloom.errors import Ambiguous, UserError
    from torchloom.runner.job_lookup import find_job

    try:
        return find_job(job) if job else None
    except Ambiguous:
        raise
    except UserError:  # it waits in the queue, or has never had a run
        return None


def _is_active(job: str, record: "RunRecord | None") -> bool:
    """Tell whether a job has not ended, so that only its pause is to be lifted."""
    from torchloom.client import chosen
    from torchloom.client.http import OVER

    if record is not None or not job:
        return True
    return chosen.is_elsewhere() and chosen.ask("job", job=job)["state"] not in OVER


def _resumption(record: "RunRecord", asked: dict[str, Any]) -> "Resumption":
    from torchloom.cli.jobs import job_shapes
    from torchloom.cli.submit import submission
    from torchloom.launch.records.resumption import Continuation, newest_checkpoint
    from torchloom.runner import job_lookup
    from torchloom.runner.api import get_runner
    from torchloom.schedulers.local_scheduler import create_scheduler
    from torchloom.specs.api import AppState

    known = _known_to_the_plane(record.id)
    submission.committed_steps(record.id)
    ranks, step, until = map(asked.get, ("workers", "from_step", "until"))
    wanted = Continuation(ranks, step, until, asked["from_scratch"], asked.get("distributed"))
    is_ahead = known is not None and job_shapes.is_ahead(record, known)
    is_complete = record.state is AppState.SUCCEEDED and not is_ahead
    if record.started_at is not None:
        wanted.check(record.id, is_complete, newest_checkpoint(record))
    runner = get_runner()
    scheduler = create_scheduler(runner.name())
    info = scheduler.resume_dryrun(record.id, wanted)
    if not job_lookup.is_of_the_queue(known or {}):
        return submission.Resumption(runner, scheduler, info)
    return submission.Resumption(runner, scheduler, info, lambda: settle("resume", **asked))


def _known_to_the_plane(job: str) -> dict[str, Any] | None:
    """Return a job as this user's plane knows it; the plane is started if necessary."""
    from torchloom.client import plane
    from torchloom.runner import job_lookup
    from torchloom.settings import wants_plane

    if not wants_plane():
        return None
    plane.find_or_start()
    return job_lookup.live_job(job)
