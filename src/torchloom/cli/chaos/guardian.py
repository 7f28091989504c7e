"""A small process that undoes what faults have left when whoever made them is gone.

It waits for the end of a pipe: the kernel closes that when its parent ends, however that was. It
leads a session of its own, so that what ends the parent does not end it too.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from torchloom.cli.chaos.notes import Notes
from torchloom.errors import Failure

_FAREWELL = 90.0  # seconds for what it may have to undo
_MODULE = "torchloom.cli.chaos.guardian"
_READY = b"\n"


class Guardian:
    """The guardian of a series: it is there when the block begins, and gone behind it."""

    def __init__(self, run: Path) -> None:
        self._words = [sys.executable, "-P", "-m", _MODULE, str(run)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._words, stdin=pipe, stdout=pipe, start_new_session=True, cwd="/"
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != _READY:
            raise Failure("no process could be started that undoes faults; nothing was begun")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
            process.wait(_FAREWELL)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None


def main(run: str) -> int:
    """Wait until nobody holds the other end, then undo what is left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    while sys.stdin.buffer.read(1):
        pass
    Notes(Path(run)).undo_all()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
