"""Keep one child process running: start it, and restart it after a growing pause when it ends.

The plane's parts and a job's node agent are such processes. This class neither waits nor reaps:
its owner reports that the child ended, and calls `restart_if_due` when `wait` is over.
"""

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds before a process is started again
_STABLE = 10.0  # seconds after which an end does not count as a repeated failure


class RestartedProcess(ABC):
    """A child and its restarts; a subclass executes it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.pid: int | None = None
        self.ends = 0  # in a row, each soon after its start
        self.how = ""  # it ended the last time
        self.due: float | None = None  # when to start it again
        self.is_wanted = True
        self._clock = clock
        self._started = 0.0
        self._pause = FIRST_PAUSE

    @abstractmethod
    def execute(self) -> int:
        """Start the process and return its pid; an OSError counts as an end."""

    @property
    def wait(self) -> float | None:
        """Seconds until it is to be started again, if it is."""
        return None if self.due is None else max(0.0, self.due - self._clock())

    def start(self) -> None:
        """Start it, unless it runs, waits to be restarted, or has been given up."""
        if self.pid is None and self.due is None and self.is_wanted:
            self._start()

    def restart_if_due(self) -> None:
        """Start it again if its pause is over."""
        if self.wait == 0.0:
            self._start()

    def note_end(self, status: int) -> None:
        """Take note that the child was reaped with this status, and plan its restart."""
        self._plan_restart(_in_words(os.waitstatus_to_exitcode(status)))

    def give_up(self) -> None:
        """Do not start it again."""
        self.is_wanted, self.due = False, None

    def _start(self) -> None:
        self.due, self._started = None, self._clock()
        try:
            self.pid = self.execute()
        except OSError as error:
            why = f"{error.strerror}: {error.filename}" if error.strerror else str(error)
            self._plan_restart(f"cannot start: {why}")

    def _plan_restart(self, how: str) -> None:
        now = self._clock()
        if now - self._started > _STABLE:
            self._pause, self.ends = FIRST_PAUSE, 0
        self.pid, self.how, self.ends = None, how, self.ends + 1
        if self.is_wanted:
            self.due = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
