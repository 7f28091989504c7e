"""Whether the files of the databases are those that were opened, and whole.

A look at a file's name costs nothing and is taken every few seconds. SQLite's own check reads the
whole file: it is done beside all else some time after a start and once a day, and by `loom doctor`.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from torchloom.doctor.findings import CheckFinding, ok, problem
from torchloom.weaver.store.backup import PARTS, REMEDY, DatabaseDamaged
from torchloom.weaver.store.engine import Part
from torchloom.weaver.store.place import DatabasePlace

LOOK = 2.0  # seconds between two looks at the names
CHECK = 86_400.0  # seconds between two checks of the whole
FIRST_CHECK = 60.0  # seconds after a start
_AT_ONCE = 2000  # instructions of SQLite between two looks at the clock
_LONGEST = 10.0  # seconds for a check by `loom doctor`
_GONE = "`loom down`, then `loom up`: jobs are found again in their folders; or `loom restore FILE`"


class Unfinished(Exception):
    """A check was left before its end."""


class DatabaseHealth:
    """What is wrong with the databases of a weaver, in sentences by database."""

    def __init__(
        self, place: DatabasePlace, damage: dict[str, str], trouble: Callable[[], str]
    ) -> None:
        self._place = place
        self._damage = damage  # by name, from opening them; more is added by checks
        self._trouble = trouble  # why records are not being stored, if so
        self._opened = {part: _identity(self._path(part)) for part in self._parts}
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._due = time.monotonic() + FIRST_CHECK
        self.problems: dict[str, str] = {}
        self.look()

    def look(self) -> None:
        """Compare the files with those that were opened; begin a check that is due."""
        found: dict[str, str] = {}
        for part in self._parts:
            if why := self._damage.get(part) or self._replaced(part):
                found[part] = why
        if "records" not in found and (trouble := self._trouble()):
            found["records"] = f"what ranks report is not being stored: {trouble}"
        self.problems = found
        if self._parts and time.monotonic() >= self._due:
            self.check_soon()

    def check_soon(self) -> None:
        """Have both files checked in another thread, unless that is under way."""
        self._due = time.monotonic() + CHECK
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(asyncio.to_thread(self.check), name="check")

    def check(self) -> None:
        """Check both files as a whole, in the caller's thread."""
        for part in self._parts:
            path = self._path(part)
            if part in self._damage or self._replaced(part):
                continue
            with contextlib.suppress(Unfinished):
                if why := checked(path, self._stop.is_set, rest=0.001):
                    self._damage[part] = str(DatabaseDamaged(path, why))

    async def close(self) -> None:
        """Leave a check that is under way."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return PARTS if self._place.folder is not None else ()

    def _path(self, part: Part) -> Path:
        assert self._place.folder is not None
        return self._place.folder / f"{part}.db"

    def _replaced(self, part: Part) -> str:
        now = _identity(self._path(part))
        if now == self._opened[part]:
            return ""
        how = "was removed" if now is None else "was replaced by another file"
        return f"{self._path(part)} {how} while the plane uses it; {_GONE}"


def checked(path: Path, is_over: Callable[[], bool], rest: float = 0.0) -> str:
    """Return what SQLite finds wrong with a file that may be in use; nothing if all is well."""

    def look() -> int:
        if rest:
            time.sleep(rest)
        return int(is_over())

    address = f"file:{quote(str(path))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
            connection.set_progress_handler(look, _AT_ONCE)
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            raise Unfinished from error
        return str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if found == "ok" else str(found).strip().splitlines()[-1]


def findings(place: DatabasePlace, reported: Iterable[str]) -> list[CheckFinding]:
    """Return how `loom doctor` shows it: what a running plane reports, and a check of the files."""
    if place.folder is None:
        return [problem("databases", text, "see the weaver's log") for text in reported]
    found = [problem("databases", *_parted(text)) for text in reported]
    if found:
        return found
    unfinished = ""
    for path in (place.folder / f"{part}.db" for part in PARTS):
        deadline = time.monotonic() + _LONGEST
        try:
            why = checked(path, lambda: time.monotonic() > deadline) if path.exists() else ""  # noqa: B023
        except Unfinished:
            unfinished = f"; {path.name} in part, it is large"
            continue
        if why:
            found.append(problem("databases", *_parted(str(DatabaseDamaged(path, why)))))
    if not found and (place.folder / "state.db").exists():
        found.append(ok("databases", f"both were checked{unfinished}"))
    return found


def _parted(text: str) -> tuple[str, str]:
    """Return what is wrong and what to do about it."""
    what, _, remedy = text.partition("; ")
    return what, remedy or REMEDY


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a name stands for; it is not opened, that would release SQLite's locks."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
