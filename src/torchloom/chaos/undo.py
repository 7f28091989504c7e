"""A small process that undoes what faults have left when whoever made them is gone.

It waits for the end of a pipe: the kernel closes that when its parent ends, however that was. It
leads a session of its own, so that what ends the parent does not end it too.
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
_FAREWELL = 90.0  # seconds for what it may have to undo
_MODULE = "torchloom.chaos.undo"
_READY = b"\n"


class NotUndone(Failure):
    """Something of a fault is still there."""

    code = "not_undone"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"a fault could not be undone: {why}; {path} says what it was")


class UndoNotes:
    """The notes of one job."""

    def __init__(self, run: Path) -> None:
        self.folder = run / FOLDER

    def write(self, number: int, undo: Undo) -> None:
        """Have it on the disk, whole, how a fault is undone."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self._path(number)
        partial = path.with_suffix(".partial")
        with open(partial, "w", opener=_private) as file:
            json.dump(dict(undo), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def undo(self, number: int) -> None:
        """Undo one fault; nothing when that was done before."""
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
        """Undo whatever there is, the newest first; return which. What fails is raised at last."""
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
    UndoNotes(Path(run)).undo_all()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
