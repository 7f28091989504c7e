"""A launch whose allocation ends: in time its ranks save, and it asks to be queued again."""

import os
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchloom.cli.output import say
from torchloom.cli.relay import relay_logs
from torchloom.cli.submission import Launch
from torchloom.cli.target import Request
from torchloom.errors import Failure, LoomError
from torchloom.launch.records.parcel import STOP
from torchloom.launch.supervisor.cancellation import TIME_LIMIT, is_over
from torchloom.runner.api import Runner
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import AppDryRunInfo

if TYPE_CHECKING:
    import socket

    from torchloom.launch.logs.display import Display
    from torchloom.launch.records.request import Input

# What an engine was asked to send before the limit: to the script alone, or, where it signals all
# processes of a job, one that nobody notices who does not wait for it.
WARNINGS = (signal.SIGUSR1, signal.SIGURG)
_POLITE = signal.SIGWINCH  # in such engines' jobs what SIGTERM is to a script alone
REASON = "requeued_before_limit"
_LOOK = 1.0  # seconds between looks for word that the job is to end
_WHY = "the allocation ends soon"


class TimedLaunch(Launch):
    """Of a warning comes: a checkpoint, the end of the ranks, a place in the queue. In this order,
    and none without the one before: a job that cannot save runs on to its limit."""

    ending = (*Launch.ending, *WARNINGS[1:], _POLITE)

    def __init__(
        self,
        runner: Runner,
        scheduler: LocalScheduler,
        request: Request,
        info: AppDryRunInfo[Any],
        show: "Display",
        requeue: tuple[str, ...],
    ) -> None:
        super().__init__(runner, scheduler, request, info, show)
        self._requeue = requeue
        goes_on = info.request.launch.attempt > 0
        self._since = datetime.now(UTC) if goes_on else None  # what it said before was shown before
        self._warned = threading.Event()
        self._saved = False

    def _start(self, give: "Input", window: bytes) -> "socket.socket":
        channel = super()._start(give, window)
        threading.Thread(target=self._hear_of_stop, daemon=True).start()
        return channel

    def _hear_of_stop(self) -> None:
        """End when word of that lies in the job's folder: a signal may not have come through."""
        word = Path(self._info.request.launch.submitted, STOP)
        while not word.exists():
            time.sleep(_LOOK)
        if not self._stopping:
            os.kill(os.getpid(), _POLITE)

    def _relay(self) -> None:
        wait = partial(self._scheduler.wait, self._app_id)
        relay_logs(self._record(), True, wait, self._show, self._since)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == _POLITE and self._stopping:
            return  # it was asked twice, by signal and by word in its folder
        if signum not in WARNINGS:
            ends = signal.SIGTERM if signum == _POLITE else signum
            super()._on_signal(ends, frame)
        elif not self._warned.is_set():
            self._warned.set()
            threading.Thread(target=self._leave_in_time, daemon=True).start()

    def _stop(self, signum: int) -> None:
        """Whoever ends the job means it: it is not queued again, saved or not."""
        self._saved = False
        if not is_over(self._info.request.launch.deadline):
            super()._stop(signum)
            return
        self._stopping, self._stopped_by = True, signum
        self._scheduler.stop(self._app_id, TIME_LIMIT, signum)

    def _leave_in_time(self) -> None:
        """Have all ranks save and end."""
        if not self._requeue:
            say("time runs out, and the engine cannot be asked to queue the job again")
            return
        try:
            step = self._checkpoint()
        except LoomError as error:
            say(f"time runs out, and no checkpoint can be had: {error}; it runs on to its limit")
            return
        say(f"time runs out: saved at step {step}, to be queued again")
        self._saved = True
        self._scheduler.stop(self._app_id, REASON)

    def _checkpoint(self) -> int:
        outcome = self._asked()
        made = outcome.get("checkpoint") or {}
        if made.get("state") != "committed":
            raise Failure(str(made.get("reason") or f"it is {outcome['state']}"))
        return int(made["step"])

    def _asked(self) -> dict[str, Any]:
        """Ask the plane that watches the job: this host's, or the one that serves it from afar."""
        from torchloom.client import places, plane, served

        far = None if places.door().exists() else served.client()
        if far is not None:
            with far:
                return far.command(self._app_id, "checkpoint", reason=_WHY, wait=60.0)
        outcome: dict[str, Any] = plane.ask("checkpoint", None, job=self._app_id, reason=_WHY)
        return outcome

    def queue_again(self) -> None:
        """Ask for the next place in the queue, if all is saved, and wait for the end it brings."""
        if not self._saved or self._record().reason != REASON:  # it came to its own end
            return
        done = subprocess.run(self._requeue, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"cannot queue it again: {done.stderr.strip() or done.stdout.strip()}")
            return
        threading.Event().wait(60)  # the engine ends this process
