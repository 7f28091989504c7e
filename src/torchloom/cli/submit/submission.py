"""A job on this machine: start it, print its output, forward signals, return its exit code.

A signal does not interrupt the output: its handler signals the job, and the rest is still printed.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchloom.cli.jobs.job_shapes import cold_starts, job_shape, took, with_both_states
from torchloom.cli.jobs.logs import relay_logs
from torchloom.cli.output import echo, echo_json, say
from torchloom.cli.submit.target import (
    TargetKind,
    TargetRequest,
    count,
    kind_of,
    processes_in_words,
)
from torchloom.errors import Failure
from torchloom.launch.agent import terminal
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import Input, LaunchRequest
from torchloom.runner.api import Runner
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.settings import wants_plane
from torchloom.specs.api import NONE, AppDryRunInfo, AppState, make_app_handle
from torchloom.specs.states import job_state_of

if TYPE_CHECKING:
    from torchloom.launch.hosts.joint_launch import JointHead
    from torchloom.launch.logs.display import Display

DETACH_WINDOW = 2.0  # seconds in which a second Ctrl-C stops the job instead of detaching
DETACHED = 130
IDLE = 124  # as `timeout` has it
_SLOW = 1.0  # seconds after which the reason of a cold start is printed
_POLL = 0.5  # seconds between two checks for ranks that have not started by then
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
_RESUME_POLL = 0.1  # seconds between two checks of a waiting job
_OVER = ("COMPLETED", "FAILED", "CANCELLED")


class UserDetached(BaseException):
    """The user detached from the job; not an Exception, so that no handler swallows it."""


class SubmissionInterrupted(BaseException):
    """A signal must interrupt the command: there is no job yet, or it is a second Ctrl-C."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signum)


class LocalSubmission:
    """A dry run to be started as a job on this machine."""

    ending: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)  # signals that stop it

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        request: TargetRequest,
        info: AppDryRunInfo[Any],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._info = info
        self._is_program = kind_of(request).is_program
        self._app_id: str = info.request.launch.app_id
        self._handle = make_app_handle(scheduler.backend, runner.name(), self._app_id)
        self._ranks = sum(role.total for role in info.request.launch.roles)
        self._many = self._in_words(request, info.request.launch)
        self._started = self._detached = self._stopping = self._leaving = False
        self._starting = False
        self._early: int | None = None  # a signal that arrived while the job was starting
        self._stopped_by = 0

    def _in_words(self, request: TargetRequest, launch: LaunchRequest) -> str:
        """Return the number of processes, and why or where."""
        if launch.carrier:
            hosts = sum(len(role.replicas) for role in launch.roles)
            return f"{count(self._ranks)} on {hosts} hosts"
        return processes_in_words(request) if self._is_program else count(self._ranks)

    def submit(self) -> None:
        """Start the job; print its handle and the commands for it."""
        self._schedule()
        echo(self._handle)
        say(f"{self._app_id} submitted\n{self._next_commands()}")
        self._announce_page()

    def submit_json(self) -> None:
        """Start the job and print it as JSON."""
        self._schedule()
        echo_json(job_shape(self._record(), self._scheduler.backend))

    def wait(self) -> int:
        """Wait for the end of a submitted job without output; return its exit code."""
        return self._until_over(lambda: None)

    def show_logs(self) -> int:
        """Print the output of a submitted job; return its exit code."""
        return self._until_over(self._relay)

    def follow(self) -> int:
        """Start the job, print its output and return its exit code."""
        return self._until_over(self._start_and_show)

    def _schedule(self) -> None:
        self._scheduler.schedule(self._info)
        self._started = self._detached = True

    def _start_and_show(self) -> None:
        self._announce()
        give = self._give()
        window = terminal.window_size(1) if give == "terminal" else b""
        self._starting = True
        with self._start(give, window) as channel:
            self._started = True
            if self._early is not None:
                self._on_signal(self._early, None)
            with self._explained_start("\r" if give == "terminal" else ""):
                if give == "terminal":
                    terminal.show(channel, 0, 1)
                else:
                    self._relay()

    @contextlib.contextmanager
    def _explained_start(self, ending: str = "") -> Iterator[None]:
        """Print why a start is cold, if it is slow and a warm start would be faster."""
        over = threading.Event()
        work = threading.Thread(target=self._explain_start, args=(over, ending), daemon=True)
        work.start()
        try:
            yield
        finally:
            over.set()

    def _explain_start(self, over: threading.Event, ending: str) -> None:
        is_over = over.wait(_SLOW) or not self._gains_by_warmth()
        while not is_over:
            record = catalog.record(self._app_id)
            if record is None or all(rank.warmth for rank in record.ranks):
                if record is not None and (why := cold_starts(record)):
                    say(why, f"{ending}\n")
                return
            is_over = over.wait(_POLL)

    def _gains_by_warmth(self) -> bool:
        from torchloom.launch.keeper.client import is_worth_it
        from torchloom.launch.keeper.python_command import PythonCommand

        launch: LaunchRequest = self._info.request.launch
        for role in launch.roles:
            command = PythonCommand.parse(role.replicas[0].argv if role.replicas else ())
            if command and is_worth_it(command, role.cwd or launch.cwd, role.distributed):
                return True
        return False

    def _announce(self) -> None:
        if not self._is_program:
            echo(self._handle)
        say(f"{self._app_id}: {self._many}")
        self._announce_page()

    def _announce_page(self) -> None:
        """Print the URL of the job's page; the plane's server may still be starting."""
        if not wants_plane():
            return
        from torchloom.client.plane import page_of

        url, open_it = page_of(self._app_id), f"`loom open {self._app_id}`"
        say(f"{url} ({open_it} signs you in)" if url else f"{open_it} shows it in a browser")

    def _start(self, give: Input, window: bytes) -> socket.socket:
        return self._scheduler.start(self._info, give, window)

    def _give(self) -> Input:
        """Return the standard input of the job: ours for a single program, none for a group."""
        if not self._is_alone() or (os.isatty(0) and not _in_foreground()):
            return "nothing"
        return "terminal" if all(map(os.isatty, (0, 1, 2))) else "stdin"

    def _is_alone(self) -> bool:
        """Tell whether the job stands in for `python train.py`."""
        return self._is_program and self._ranks == 1

    def _relay(self) -> None:
        relay_logs(self._record(), self._is_program, partial(self._scheduler.wait, self._app_id))

    def _until_over(self, show: Callable[[], None]) -> int:
        """Call `show`, then wait for the end; signals act on the job meanwhile."""
        try:
            with self._signals():
                show()
                self._runner.wait(self._handle)
        except UserDetached:
            return DETACHED
        except SubmissionInterrupted as interrupt:
            self._scheduler.stop(self._app_id)  # it may just have been created
            return 128 + interrupt.signum
        except BrokenPipeError:
            self._end_unread()
            raise
        return self._report()

    def _end_unread(self) -> None:
        """Stop a job whose output has no reader, as a broken pipe would; not a detached one."""
        if not self._detached:
            say(f"{self._app_id} is stopped: its output was closed")
            self._scheduler.stop(self._app_id, "output_closed")
            self._runner.wait(self._handle)

    # Signals.

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        signums = (*self.ending, *_FORWARDED)
        before = {signum: signal.signal(signum, self._on_signal) for signum in signums}
        try:
            yield
        finally:
            for signum, action in before.items():
                signal.signal(signum, action)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        """Stop the job, forward the signal to its ranks, or detach on Ctrl-C."""
        if self._starting and not self._started and self._early is None:
            self._early = signum  # handled as soon as the job has started
        elif not self._started:
            raise SubmissionInterrupted(signum)
        elif signum in _FORWARDED or self._stopping:
            self._forward(signum)
        elif self._leaving:
            raise SubmissionInterrupted(signum)
        elif signum == signal.SIGINT and self._may_leave():
            self._leave()
        else:
            self._stop(signum)

    def _may_leave(self) -> bool:
        return os.isatty(0) and (self._detached or not self._is_alone())

    def _leave(self) -> None:
        """Detach from the job, unless a second Ctrl-C stops it."""
        try:
            self._leaving = True
            echo(err=True)  # after the ^C
            running = f"{self._app_id} is still running; press Ctrl-C again to stop it"
            say(f"{running}\n{self._next_commands()}")
            time.sleep(DETACH_WINDOW)
        except SubmissionInterrupted as interrupt:
            self._leaving = False
            self._stop(interrupt.signum)
        else:
            raise UserDetached

    def _stop(self, signum: int) -> None:
        self._stopping = True
        self._stopped_by = signum
        self._scheduler.stop(self._app_id, signum=signum)

    def _forward(self, signum: int) -> None:
        """Send a signal to the launch process, which forwards it to all ranks."""
        if launcher := self._record().launcher:
            launcher.send(signum)

    # The end.

    def _report(self) -> int:
        record = self._record()
        if record.state is not AppState.SUCCEEDED or not self._is_alone():
            why = f" ({record.reason})" if record.reason else ""
            say(f"{self._app_id} {job_state_of(record.state)}{why} after {took(record)}")
        if record.reason.startswith("node_lost_") and record.error != NONE:
            say(record.error)
        if record.state is AppState.FAILED:
            say(f"see `loom show {self._app_id}`")
        if self._stopped_by and all(rank.exit_code is None for rank in record.ranks):
            return 128 + self._stopped_by  # before any of it had started
        return exit_code(record)

    def _record(self) -> RunRecord:
        record = catalog.record(self._app_id)
        if record is None:
            raise Failure(f"{self._app_id} was removed while it was followed")
        return record

    def _next_commands(self) -> str:
        verbs = ("loom logs -f", "loom show", "loom stop")
        return "\n".join(f"  {verb} {self._app_id}" for verb in verbs)


class Launch(LocalSubmission):
    """A job that ends with the command that started it, like torchrun's ranks."""

    ending: tuple[signal.Signals, ...] = (
        *LocalSubmission.ending,
        signal.SIGHUP,
        signal.SIGQUIT,
    )

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        request: TargetRequest,
        info: AppDryRunInfo[Any],
        show: "Display",
        head: "JointHead | None" = None,
        as_torchrun: bool = False,
    ) -> None:
        super().__init__(runner, scheduler, request, info)
        self._show = show
        self._head = head
        self._as_torchrun = as_torchrun

    def _announce_page(self) -> None:
        """Print nothing: scripts call `launch` like torchrun."""

    def _is_alone(self) -> bool:
        """torchrun prints nothing on success."""
        return self._as_torchrun or super()._is_alone()

    def _announce(self) -> None:
        if not self._as_torchrun:
            super()._announce()

    def _gains_by_warmth(self) -> bool:
        return not self._as_torchrun and super()._gains_by_warmth()

    def _report(self) -> int:
        code = super()._report()
        is_failure = self._record().state is AppState.FAILED
        return 1 if self._as_torchrun and is_failure else code

    def _start(self, give: Input, window: bytes) -> socket.socket:
        return self._scheduler.start(self._info, give, window, self._head)

    def _relay(self) -> None:
        record = self._record()
        if self._head is not None:  # the others show their own
            record = replace(record, ranks=tuple(r for r in record.ranks if r.replica == 0))
        relay_logs(record, True, partial(self._scheduler.wait, self._app_id), self._show)

    def _give(self) -> Input:
        return "leash"

    def _may_leave(self) -> bool:
        return False


def _in_foreground() -> bool:
    """Tell whether this process may read the terminal: not if the shell started it with `&`."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def exit_code(record: RunRecord) -> int:
    """Return the job's exit code as of one command: that of its first bad rank."""
    if record.state is AppState.SUCCEEDED:
        return 0
    if record.reason.startswith("idle_output"):
        return IDLE
    bad = [rank for rank in record.ranks if rank.exit_code]
    if record.state is AppState.FAILED:  # ranks that were stopped because of it are CANCELLED
        bad = [rank for rank in bad if rank.state is AppState.FAILED]
    if bad:
        first = min(bad, key=lambda rank: (rank.state is not AppState.FAILED, rank.ended_at or ""))
        code = first.exit_code or 1
        return code if code > 0 else 128 - code
    return 0 if len(record.ranks) == 1 and record.ranks[0].exit_code == 0 else 1


class Resumption(LocalSubmission):
    """The next attempt of a run; the output of earlier attempts is not printed again."""

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        info: AppDryRunInfo[Any],
        begin: Callable[[], object] | None = None,
    ) -> None:
        """`begin` has the plane start the run from its queue; without it, it starts here."""
        self._begin = begin
        super().__init__(runner, scheduler, TargetRequest((), kind=TargetKind.SCRIPT), info)
        self._since = datetime.now(UTC)
        self._attempt: int = info.request.launch.attempt

    def _in_words(self, request: TargetRequest, launch: LaunchRequest) -> str:
        ranks = "" if self._is_queued else f" with {count(self._ranks)}"
        return f"resuming as attempt {launch.attempt + 1}{ranks}"

    @property
    def _is_queued(self) -> bool:
        return self._begin is not None

    def submit_json(self) -> None:
        self._schedule()
        if self._is_queued:
            from torchloom.client import plane

            echo_json(with_both_states(plane.ask("job", job=self._app_id)))
        else:
            echo_json(job_shape(self._record(), self._scheduler.backend))

    def _schedule(self) -> None:
        self._start_it()
        self._started = self._detached = True

    def _start_and_show(self) -> None:
        self._announce()
        self._starting = True
        self._start_it()
        self._started = self._detached = True
        if self._early is not None:
            self._on_signal(self._early, None)
        self._await_attempt()
        self._relay()

    def _start_it(self) -> None:
        if self._begin is not None:
            self._begin()
        else:
            self._scheduler.schedule(self._info)

    def _await_attempt(self) -> None:
        """Wait until the next attempt has started; print why it is waiting."""
        shown = ""
        while self._is_queued and self._record().restarts < self._attempt:
            from torchloom.client import plane

            job = plane.ask("job", job=self._app_id)
            if job["state"] in _OVER and self._record().restarts < self._attempt:
                raise Failure(f"{self._app_id} {job['state']} ({job['reason']})")
            if job["state"] == "QUEUED" and job["reason"] != shown:
                shown = job["reason"]
                say(f"{self._app_id} {shown}")
            time.sleep(_RESUME_POLL)

    def _relay(self) -> None:
        wait = partial(self._scheduler.wait, self._app_id)
        relay_logs(self._record(), True, wait, since=self._since)

    def _is_alone(self) -> bool:
        return False


def committed_steps(app_id: str, patience: float = 5.0) -> None:
    """Wait until the plane has committed the checkpoint that the ranks wrote last."""
    from torchloom.client import plane
    from torchloom.errors import LoomError

    if plane.door().exists():
        with contextlib.suppress(LoomError, OSError):
            plane.ask("checkpoints", 2 * patience, job=app_id, limit=1, wait=patience)
