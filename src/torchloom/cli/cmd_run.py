"""`loom run`: submit a script, a component or a spec, and follow it."""

import sys
from typing import Any

import click

from torchloom.cli.command import key_option
from torchloom.cli.elsewhere import EngineSubmission
from torchloom.cli.output import echo_json
from torchloom.cli.stdin_request import request_from_stdin
from torchloom.cli.submission import Submission
from torchloom.cli.target import Kind, Request, dryrun, dryrun_shape, kind_of, settled
from torchloom.cli.target_command import TargetCommand, request_from, target_options
from torchloom.errors import UserError
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import AppDryRunInfo


@click.command("run", cls=TargetCommand)
@click.option("-d", "--detach", is_flag=True, help="Do not follow it.")
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Show what would be sent.")
@click.option("--wait", is_flag=True, help="With -d: wait for its end all the same.")
@click.option("--log", is_flag=True, help="With -d: print its logs all the same.")
@click.option("--tee_logs", "--tee-logs", is_flag=True, hidden=True, expose_value=False)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the request as JSON from stdin.")
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print the job as one object; implies -d.")
@target_options
def command(
    detach: bool,
    dry: bool,
    wait: bool,
    log: bool,
    from_stdin: bool,
    as_json: bool,
    key: str | None,
    **options: Any,
) -> int:
    """Run TARGET: a script, `-m module`, a component, a spec file or a command.

    \b
    loom run train.py --lr 0.1     what follows the script is the script's
    loom run -n 4 train.py         four processes with torchrun's environment
    loom run dist.ddp -j 1x2 --script train.py
    loom run job.yaml              through the queue of this user's plane
    """
    request = request_from_stdin(options, sys.stdin) if from_stdin else request_from(options)
    request, runner = settled(request), get_runner()
    info = dryrun(request, runner)
    if dry or request.dry:
        _show(request, info, as_json)
        return 0
    queued = _queued(runner, request, info, key)
    if queued is None and key is not None:
        raise UserError("--key is for a job of the queue (job.yaml); anything else starts at once")
    job = queued or _submission(runner, request, info)
    if not (detach or as_json):
        return job.follow()
    job.submit_json() if as_json else job.submit()
    if log:
        return job.show_logs()
    return job.wait() if wait else 0


def _show(request: Request, info: AppDryRunInfo[Any], as_json: bool) -> None:
    if as_json:
        echo_json({**dryrun_shape(request.scheduler, info), "problems": None})
    else:
        click.echo(repr(info))


def _queued(
    runner: Runner, request: Request, info: AppDryRunInfo[Any], key: str | None
) -> Submission | None:
    """Return what the plane's queue runs: a job from a file."""
    if kind_of(request) is not Kind.SPEC:
        return None
    from torchloom.cli import queued
    from torchloom.specs.jobspec import JobSpec
    from torchloom.specs.serialize import read_spec

    spec, scheduler = read_spec(request.words[0]), runner.scheduler(request.scheduler)
    if not isinstance(spec, JobSpec) or not queued.goes_through_the_queue(request, spec):
        return None
    assert isinstance(scheduler, LocalScheduler)
    said = runner.cfg_from_str(request.scheduler, *request.scheduler_args)
    spec = queued.as_asked(spec, request, {**said, **request.cfg})
    return queued.QueuedSubmission(runner, scheduler, request, info, spec, key)


def _submission(
    runner: Runner, request: Request, info: AppDryRunInfo[Any]
) -> Submission | EngineSubmission:
    scheduler = runner.scheduler(request.scheduler)
    if isinstance(scheduler, LocalScheduler):
        return Submission(runner, scheduler, request, info)
    return EngineSubmission(runner, info)
