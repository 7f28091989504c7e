"""How faults that last are taken away again, on the disk before they happen.

Whoever made a fault undoes it and removes its note. If that one is killed, its guardian does; and
if both are, whoever comes next.
"""

import json
import os
from pathlib import Path

from torchloom.cli.chaos import striking
from torchloom.cli.chaos.targets import Undo
from torchloom.errors import Failure, LoomError

FOLDER = "chaos-undo"


class NotUndone(Failure):
    """Something of a fault is still there."""

    code = "not_undone"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"a fault could not be undone: {why}; {path} says what it was")


class Notes:
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
            striking.undo(note)
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
