"""`loom run`: submit a script, a component or a spec, and follow it."""

import sys
import threading
from typing import Any

import click

from torchloom.cli.command import examples, key_option
from torchloom.cli.jobs.job_shapes import engine_job_shape
from torchloom.cli.output import echo, echo_json, say
from torchloom.cli.submit.command_line import (
    TargetCommand,
    request_from,
    request_from_stdin,
    target_options,
)
from torchloom.cli.submit.submission import LocalSubmission
from torchloom.cli.submit.target import (
    TargetKind,
    TargetRequest,
    dryrun,
    dryrun_shape,
    kind_of,
    settled,
)
from torchloom.errors import UserError
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers.batch.logs import records
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import NONE, AppDryRunInfo, AppState, parse_app_handle

_DETACHED = 130


class EngineSubmission:
    """A dry run to be submitted to an engine other than the local one."""

    def __init__(self, runner: Runner, info: AppDryRunInfo[Any]) -> None:
        self._runner = runner
        self._info = info
        self._handle = ""

    def submit(self) -> None:
        """Submit the job; print its handle and the commands for it."""
        self._handle = self._runner.schedule(self._info)
        echo(self._handle)
        verbs = ("loom logs -f", "loom show", "loom stop")
        for note in getattr(self._info.request, "notes", ()):
            say(note)
        say("\n".join(["submitted", *(f"  {verb} {self._handle}" for verb in verbs)]))

    def submit_json(self) -> None:
        """Submit the job and print it as JSON."""
        self._handle = self._runner.schedule(self._info)
        status = self._runner.status(self._handle)
        name = self._info.app.name if self._info.app else ""
        state = status.state if status else AppState.UNKNOWN
        echo_json(engine_job_shape(self._handle, name, state))

    def follow(self) -> int:
        """Submit the job, show its logs and return its exit code."""
        self.submit()
        return self.show_logs()

    def show_logs(self) -> int:
        """Print the output of all replicas until the job ends; Ctrl-C detaches."""
        backend, _, app_id = parse_app_handle(self._handle)
        scheduler = self._runner.scheduler(backend)
        try:
            if isinstance(scheduler, BatchScheduler):
                for line in scheduler.log_lines(app_id, follow=True):
                    click.echo(line, nl=not line.endswith("\n"))
                return self.wait()
            return self._show_each()
        except KeyboardInterrupt:
            say(f"still running; `loom logs -f {self._handle}` follows it, `loom stop` stops it")
            return _DETACHED

    def _show_each(self) -> int:
        roles = self._info.app.roles if self._info.app else []
        places = [(role.name, index) for role in roles for index in range(role.num_replicas)]
        readers = [threading.Thread(target=self._print, args=p, daemon=True) for p in places]
        for reader in readers:
            reader.start()
        code = self.wait()
        for reader in readers:
            reader.join()
        return code

    def wait(self) -> int:
        """Wait for the end; return 0 if the job succeeded, else the code of its first bad rank."""
        status = self._runner.wait(self._handle)
        succeeded = status is not None and status.state is AppState.SUCCEEDED
        if not succeeded:
            why = f" ({status.msg})" if status and status.msg not in ("", NONE) else ""
            say(f"{self._handle} {status.state.name if status else 'is gone'}{why}")
        return 0 if succeeded else self._code()

    def _code(self) -> int:
        """Return the first non-zero exit code in the run's records, else 1."""
        from torchloom.cli.submit.submission import exit_code

        backend, _, app_id = parse_app_handle(self._handle)
        scheduler = self._runner.scheduler(backend)
        entry = scheduler.entry(app_id) if isinstance(scheduler, BatchScheduler) else None
        found = records(entry.run_id).values() if entry else ()
        return next((code for record in found if (code := exit_code(record))), 1)

    def _print(self, role: str, index: int) -> None:
        for line in self._runner.log_lines(self._handle, role, index, should_tail=True):
            click.echo(f"[{role}{index}]: {line}", err=True, nl=not line.endswith("\n"))


@click.command(
    "run",
    cls=TargetCommand,
    epilog=examples(
        "loom run train.py --lr 0.1    # what follows the script is passed to it",
        "loom run -n 4 train.py        # four processes, with the variables of torchrun",
        "loom run -d job.yaml          # through the queue of your plane",
        "loom run -s slurm -cfg partition=gpu dist.ddp -j 2x8 --script train.py",
    ),
)
@click.option("-d", "--detach", is_flag=True, help="Do not follow the job.")
@click.option("--dryrun", "--dry-run", "dry", is_flag=True, help="Show what would be submitted.")
@click.option("--wait", is_flag=True, help="With -d: wait until the job ends.")
@click.option("--log", is_flag=True, help="With -d: print the logs until the job ends.")
@click.option("--tee_logs", "--tee-logs", is_flag=True, hidden=True, expose_value=False)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the request as JSON from stdin.")
@key_option
@click.option("--json", "as_json", is_flag=True, help="Print the job as a JSON object; implies -d.")
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

    Options of `loom run` come before TARGET; what follows TARGET is passed to it. On a terminal,
    Ctrl-C detaches and the job keeps running.
    """
    request = request_from_stdin(options, sys.stdin) if from_stdin else request_from(options)
    request, runner = settled(request), get_runner()
    info = dryrun(request, runner)
    if dry or request.dry:
        _show(request, info, as_json)
        return 0
    queued = _queued(runner, request, info, key)
    if queued is None and key is not None:
        raise UserError("--key is only for queued jobs (job.yaml)")
    job = queued or _submission(runner, request, info)
    if not (detach or as_json):
        return job.follow()
    job.submit_json() if as_json else job.submit()
    if log:
        return job.show_logs()
    return job.wait() if wait else 0


def _show(request: TargetRequest, info: AppDryRunInfo[Any], as_json: bool) -> None:
    if as_json:
        echo_json({**dryrun_shape(request.scheduler, info), "problems": None})
    else:
        click.echo(repr(info))


def _queued(
    runner: Runner, request: TargetRequest, info: AppDryRunInfo[Any], key: str | None
) -> LocalSubmission | None:
    """Return a submission to the plane's queue if the target is a job file, else None."""
    if kind_of(request) is not TargetKind.SPEC:
        return None
    from torchloom.cli.submit import queue
    from torchloom.specs.jobspec import JobSpec
    from torchloom.specs.serialize import read_spec

    spec, scheduler = read_spec(request.words[0]), runner.scheduler(request.scheduler)
    if not isinstance(spec, JobSpec) or not queue.goes_through_the_queue(request, spec):
        return None
    assert isinstance(scheduler, LocalScheduler)
    cfg = runner.cfg_from_str(request.scheduler, *request.scheduler_args)
    spec = queue.as_asked(spec, request, {**cfg, **request.cfg})
    return queue.QueuedSubmission(runner, scheduler, request, info, spec, key)


def _submission(
    runner: Runner, request: TargetRequest, info: AppDryRunInfo[Any]
) -> LocalSubmission | EngineSubmission:
    scheduler = runner.scheduler(request.scheduler)
    if isinstance(scheduler, LocalScheduler):
        return LocalSubmission(runner, scheduler, request, info)
    return EngineSubmission(runner, info)
