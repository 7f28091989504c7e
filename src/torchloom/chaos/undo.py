"""A process that undoes lasting faults if the process that injected them has ended.

It waits for the end of a pipe, which the kernel closes when its parent ends in any way. It has its
own session, so that a signal to the parent's group does not end it too.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from torchloom.chaos.faults import actions
from torchloom.chaos.targets import Undo
from torchloom.errors import Failure, LoomError

FOLDER = "chaos-undo"
_EXIT_TIMEOUT = 90.0  # seconds for the undo of everything
_MODULE = "torchloom.chaos.undo"
_READY = b"\n"


class NotUndone(Failure):
    """A fault could not be undone."""

    code = "not_undone"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"a fault could not be undone: {why}; {path} describes it")


class UndoNotes:
    """The notes of one job on how to undo its faults."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER

    def write(self, number: int, undo: Undo) -> None:
        """Write a note to disk atomically."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(number)
        partial = path.with_suffix(".partial")
        with open(partial, "w", opener=_private) as file:
            json.dump(dict(undo), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def undo(self, number: int) -> None:
        """Undo one fault, unless that was done before."""
        path = self._path(number)
        try:
            note = json.loads(path.read_text())
        except FileNotFoundError:
            return
        try:
            actions.undo(note)
        except (LoomError, OSError, KeyError) as error:
            raise NotUndone(path, str(error)) from error
        path.unlink(missing_ok=True)

    def undo_all(self) -> list[int]:
        """Undo all faults, the newest first; return their numbers. Errors are raised at the end."""
        done, failed = list[int](), list[NotUndone]()
        for number in sorted(self._numbers(), reverse=True):
            try:
                self.undo(number)
                done.append(number)
            except NotUndone as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return done

    def _numbers(self) -> list[int]:
        found = self.folder.glob("*.json") if self.folder.is_dir() else ()
        return [int(path.stem) for path in found if path.stem.isdecimal()]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.json"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Guardian:
    """Runs the undo process of a series for the duration of a `with` block."""

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
            raise Failure("the undo process could not be started; no fault was injected")
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
            process.wait(_EXIT_TIMEOUT)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None


def main(run: str) -> int:
    """Wait until the other end of stdin is closed, then undo what is left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    while sys.stdin.buffer.read(1):
        pass
    UndoNotes(Path(run)).undo_all()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
