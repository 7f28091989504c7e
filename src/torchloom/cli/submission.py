"""One submitted job as `run` sees it: start it, follow it, pass signals on, leave with its code."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from torchloom.cli.output import echo_json, job_shape, took
from torchloom.cli.relay import relay_logs
from torchloom.cli.target import Request, count, kind_of, processes_in_words
from torchloom.launch import catalog, terminal
from torchloom.launch.record import Record
from torchloom.launch.starter import Input
from torchloom.runner.api import Runner
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import AppDryRunInfo, AppState, make_app_handle

SECOND_CHANCE = 2.0  # seconds in which a second Ctrl-C stops the job instead of leaving it
DETACHED = 130


class Interrupted(BaseException):
    """A signal asked `run` itself to end; not an Exception, so nothing in between swallows it."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signum)


class Submission:
    """A dry run on its way to becoming a job on this machine."""

    def __init__(self, runner: Runner, request: Request, info: AppDryRunInfo[Any]) -> None:
        self._runner = runner
        self._info = info
        self._is_program = kind_of(request).is_program
        self._app_id: str = info.request.launch.app_id
        scheduler = runner.scheduler(request.scheduler)
        assert isinstance(scheduler, LocalScheduler)
        self._scheduler = scheduler
        self._ranks = sum(len(r.replicas) * r.ranks for r in info.request.launch.roles)
        self._many = processes_in_words(request) if self._is_program else count(self._ranks)

    @property
    def handle(self) -> str:
        return make_app_handle(self._scheduler.backend, self._runner.name(), self._app_id)

    def submit(self) -> None:
        """Start the job and say its handle and what can be done with it."""
        self._scheduler.schedule(self._info)
        click.echo(self.handle)
        self._say(f"{self._app_id} is on its way\n{self._next_commands()}")

    def submit_json(self) -> None:
        self._scheduler.schedule(self._info)
        echo_json(job_shape(self._record(), self._scheduler.backend))

    def wait(self) -> int:
        """Wait without a word; return the job's exit code."""
        with self._signals():
            return self._until_over(lambda: self._runner.wait(self.handle))

    def follow(self, started: bool = False) -> int:
        """Start the job, show what it prints, and return its exit code."""
        if not started:
            if not self._is_program:
                click.echo(self.handle)
            self._say(f"{self._app_id}: {self._many}")
        give = self._give()
        with self._signals():
            if not started:
                channel = self._scheduler.start(self._info, give)
                if give == "terminal":
                    self._until_over(lambda: terminal.show(channel, 0, 1))
                channel.close()
            shown = give == "terminal" and not started
            return self._until_over((lambda: None) if shown else self._relay)

    def _give(self) -> Input:
        """Return what standard input the job gets: one program has ours, a group has none."""
        if not self._is_program or self._ranks > 1:
            return "nothing"
        return "terminal" if os.isatty(0) and os.isatty(1) else "stdin"

    def _relay(self) -> None:
        relay_logs(self._record(), plain=self._is_program)

    def _until_over(self, show: Callable[[], object]) -> int:
        """Do `show`, then wait for the end; a signal on the way ends the job or leaves it."""
        while True:
            try:
                show()
                self._runner.wait(self.handle)
                return self._report()
            except Interrupted as interrupt:
                show = lambda: None  # noqa: E731
                if not self._obey(interrupt.signum):
                    return DETACHED

    def _obey(self, signum: int) -> bool:
        """Pass a signal on; false when the job is left to itself."""
        leave = signum == signal.SIGINT and os.isatty(0) and self._ranks > 1
        if leave and not self._second_chance():
            return False
        self._scheduler.stop(self._app_id, signum=signum)
        return True

    def _second_chance(self) -> bool:
        """Say how to come back; return whether the user wanted the job stopped after all."""
        click.echo(err=True)  # behind the ^C
        self._say(f"{self._app_id} goes on; Ctrl-C again stops it\n{self._next_commands()}")
        try:
            time.sleep(SECOND_CHANCE)
        except Interrupted:
            return True
        return False

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Be interrupted by SIGINT and SIGTERM, and hand SIGUSR1 and SIGUSR2 to the ranks."""
        actions = {
            signal.SIGINT: _interrupt,
            signal.SIGTERM: _interrupt,
            signal.SIGUSR1: self._hand_on,
            signal.SIGUSR2: self._hand_on,
        }
        before = {signum: signal.signal(signum, action) for signum, action in actions.items()}
        try:
            yield
        finally:
            for signum, action in before.items():
                signal.signal(signum, action)

    def _hand_on(self, signum: int, _frame: FrameType | None) -> None:
        for rank in self._record().ranks:
            if rank.process is not None and rank.state is AppState.RUNNING:
                rank.process.send(signum)

    def _report(self) -> int:
        record = self._record()
        if record.state is not AppState.SUCCEEDED or not self._is_program or self._ranks > 1:
            why = f" ({record.reason})" if record.reason else ""
            self._say(f"{self._app_id} {record.state.name}{why} after {took(record)}")
        if record.state is AppState.FAILED:
            self._say(f"more: loom show {self._app_id}")
        return exit_code(record)

    def _record(self) -> Record:
        record = catalog.record(self._app_id)
        if record is None:
            raise click.ClickException(f"{self._app_id} was removed while it was followed")
        return record

    def _next_commands(self) -> str:
        rows = (f"loom logs -f {self._app_id}", f"loom show {self._app_id}")
        return "\n".join(f"  {row}" for row in (*rows, f"loom stop {self._app_id}"))

    def _say(self, text: str) -> None:
        sys.stdout.flush()
        click.echo(f"loom: {text}", err=True)


def exit_code(record: Record) -> int:
    """Return what a shell would see had the job been one command: its first bad rank's code."""
    ended = sorted((r for r in record.ranks if r.exit_code), key=lambda r: r.ended_at or "")
    if ended and record.state is not AppState.SUCCEEDED:
        code = ended[0].exit_code or 0
        return code if code > 0 else 128 - code
    alone = len(record.ranks) == 1 and record.ranks[0].exit_code == 0
    return 0 if record.state is AppState.SUCCEEDED or alone else 1


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    raise Interrupted(signum)
