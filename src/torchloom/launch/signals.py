"""Turn signals into bytes to be read in the agent's own time: none is lost, none interrupts."""

import os
import signal
from types import FrameType

_WANTED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)  # those are for the user's commands


class SignalPipe:
    """Signals that came since it was made, in order."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for signum in _WANTED:
            signal.signal(signum, _note)
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)

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
