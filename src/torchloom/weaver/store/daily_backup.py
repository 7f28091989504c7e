"""The plane's own copy a day: when one is due, how many are kept, and what `loom doctor` shows.

`[backup]` in the user's config file sets how many (`keep`, 7; 0 for none) and where (`folder`,
`$LOOM_HOME/backups`). Files that a user made with `loom backup` are never removed.
"""

import asyncio
import contextlib
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torchloom.doctor.findings import CheckFinding, note, ok, problem
from torchloom.doctor.folders import amount
from torchloom.errors import LoomError, UserError, shorten
from torchloom.runner import config
from torchloom.weaver.store.backup import CopyPace, NothingToBackUp, back_up
from torchloom.weaver.store.place import DatabasePlace

SECTION = "backup"
PERIOD = 600.0  # seconds between two checks whether one is due
KEEP, MOST = 7, 1000
KEYS: Mapping[str, tuple[str, str]] = {  # of the section: default and meaning
    "keep": (str(KEEP), "Number of daily backups that are kept; 0: none are made"),
    "folder": ("$LOOM_HOME/backups", "Folder of the daily backups, as an absolute path"),
}
_DAY = 86_400.0
_FULL = 0.05  # of the disk: where less than this is free, none is made
_STAMP = "%Y%m%d-%H%M%S"
_DAILY = re.compile(r"daily-(\d{8}-\d{6})\.tar")
_log = logging.getLogger(__name__)


class BadBackup(UserError):
    """A value of the section cannot be meant; so no copies are made."""

    code = "bad_backup"

    def __init__(self, key: str, text: str, remedy: str) -> None:
        super().__init__(f"[{SECTION}] {key} = {shorten(text)}: {remedy}")


class BackupInterrupted(LoomError):
    """The plane leaves; the copy under way is dropped."""

    code = "interrupted"


@dataclass(frozen=True, slots=True)
class BackupRules:
    """How many copies are kept, and where."""

    keep: int
    folder: Path


def name_of(kind: str, now: float | None = None) -> str:
    """Return what a backup made now is called."""
    at = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return f"{kind}-{at.strftime(_STAMP)}.tar"


def rules(home: Path) -> BackupRules:
    """Return what the user's config file sets; a mistake is refused."""
    chosen = {
        key: value
        for section, key, value, _ in config.origins([str(Path.home())])
        if section == SECTION
    }
    for key in chosen:
        if key not in KEYS:
            raise BadBackup(key, chosen[key], f"the keys are {' and '.join(KEYS)}")
    text = chosen.get("keep", str(KEEP))
    if not text.isascii() or not text.isdigit() or int(text) > MOST:
        raise BadBackup("keep", text, f"write a number from 0 (none) to {MOST}")
    folder = Path(chosen.get("folder") or home / "backups").expanduser()
    if not folder.is_absolute():
        raise BadBackup("folder", str(folder), "write a whole path")
    return BackupRules(int(text), folder)


def copies(folder: Path) -> list[tuple[float, Path]]:
    """Return the daily copies of a folder with their times, newest first."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if match := _DAILY.fullmatch(path.name):
                at = datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC)
                found.append((at.timestamp(), path))
    return sorted(found, reverse=True)


def findings(home: Path, place: DatabasePlace, now: float | None = None) -> list[CheckFinding]:
    """Return how `loom doctor` shows it."""
    if place.folder is not None and not (place.folder / "state.db").exists():
        return []
    try:
        chosen = rules(home)
    except LoomError as error:
        return [problem(SECTION, str(error), "until it is corrected no daily copies are made")]
    if chosen.keep == 0:
        return [ok(SECTION, "no daily copies, as the config file says; `loom backup` makes one")]
    kept = copies(chosen.folder)
    if not kept:
        return [ok(SECTION, f"no copy yet; the plane makes one a day into {chosen.folder}")]
    old = (time.time() if now is None else now) - kept[0][0]
    size = sum(path.stat().st_size for _, path in kept)
    text = (
        f"newest copy {old / 3600:.0f} h old, {len(kept)} kept, {amount(size)} in {chosen.folder}"
    )
    if old > 2 * _DAY:
        return [note(SECTION, text, "`loom backup` makes one now; a plane that runs, one a day")]
    return [ok(SECTION, text)]


class DailyCopy:
    """Make the copy of a day beside all else, and remove those beyond the number to keep."""

    def __init__(
        self, place: DatabasePlace, home: Path, now: Callable[[], float] = time.time
    ) -> None:
        self._place = place
        self._home = home
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()

    def look_soon(self) -> None:
        """Check whether a copy is due, unless one is being made."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(asyncio.to_thread(self.look), name="daily-copy")

    async def close(self) -> None:
        """Drop what is under way."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Make the copy that is due, in the caller's thread; why none is made is logged."""
        try:
            made = self.carry_out(rules(self._home))
        except (BackupInterrupted, NothingToBackUp):
            return
        except (LoomError, OSError) as error:
            _log.warning("no daily copy of the databases: %s", error)
            return
        if made:
            _log.info("the databases were copied to %s", made)

    def carry_out(self, chosen: BackupRules) -> Path | None:
        """Make a copy if the newest is a day old; return it."""
        kept = copies(chosen.folder)
        if not chosen.keep or (kept and abs(self._now() - kept[0][0]) < _DAY):
            return None
        self._clear_partial(chosen.folder)
        if _is_nearly_full(chosen.folder):
            raise UserError(f"the disk of {chosen.folder} is nearly full")
        target = chosen.folder / name_of("daily", self._now())
        back_up(self._place, self._home, target, CopyPace(rest=2.0, sleep=self._rest))
        others = [path for _, path in copies(chosen.folder) if path != target]
        for path in others[chosen.keep - 1 :]:
            path.unlink(missing_ok=True)
        return target

    def _rest(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise BackupInterrupted("the plane is stopping")

    def _clear_partial(self, folder: Path) -> None:
        """Remove what a plane that was killed left of a copy; one at a time is made."""
        for path in folder.glob(".daily-*"):
            shutil.rmtree(path, ignore_errors=True)


def _is_nearly_full(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return usage.free < usage.total * _FULL
