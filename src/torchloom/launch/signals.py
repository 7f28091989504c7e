"""Turn signals into bytes to be read in one's own time: none is lost, none interrupts."""

import os
import signal
from collections.abc import Iterable
from types import FrameType

FORWARDED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # to the ranks
ENDING = (signal.SIGTERM, signal.SIGQUIT)  # politely, at once
# What a terminal, a batch system or a user sends to all of a job: it is meant for the ranks.
_IGNORED = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class SignalPipe:
    """Signals that came since it was made, in order; `more` of them where they mean something."""

    def __init__(self, more: Iterable[signal.Signals] = ()) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        for signum in (signal.SIGCHLD, *more):
            signal.signal(signum, _note)

    def fileno(self) -> int:
        return self._read_end

    def read(self) -> list[int]:
        """Return what came, each kind once: two SIGCHLD mean no more than one."""
        try:
            return list(dict.fromkeys(os.read(self._read_end, 4096)))
        except BlockingIOError:
            return []


def _note(_signum: int, _frame: FrameType | None) -> None:
    """Let Python write the number into the pipe."""
