"""How much room torchloom's own files take: databases, runs, their logs, caches."""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchloom.launch.checks.finding import Finding, Place, ok

PATIENCE = 3.0  # seconds for all of it; folders of runs can be many
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_DATABASES = ("state.db", "records.db")


@dataclass(slots=True)
class Sum:
    """Bytes on the disk, and whether time was enough to count all of them."""

    size: int = 0
    is_whole: bool = True

    def __str__(self) -> str:
        return f"{'' if self.is_whole else 'more than '}{amount(self.size)}"


def sizes(place: Place) -> Iterator[Finding]:
    """Tell what is there; how long it is kept is the user's choice."""
    deadline = time.monotonic() + PATIENCE
    parts = [f"{name[:-3]} {counted}" for name, counted in _databases(place, deadline)]
    if parts:
        yield ok("databases", f"{', '.join(parts)} in {_folder(place)}")
    runs = place.home / "runs"
    folders = [path for path in _inner(runs) if not path.name.startswith(".")]
    if folders:
        logs = count((path / "logs" for path in folders), deadline)
        whole = count([runs], deadline)
        what = "run" if len(folders) == 1 else "runs"
        yield ok("runs", f"{len(folders)} {what} with {whole}, {logs} of it logs, in {runs}")
    others = {"cache": "caches", "plane/spool": "spool", "plane/logs": "the plane's logs"}
    told = [f"{name} {count([place.home / at], deadline)}" for at, name in others.items()]
    yield ok("caches", ", ".join(told))


def count(paths: Iterable[Path], deadline: float) -> Sum:
    """Return what files and folders take on their disk, links not followed."""
    found, waiting = Sum(), [str(path) for path in paths]
    while waiting:
        if time.monotonic() > deadline:
            found.is_whole = False
            break
        path = waiting.pop()
        try:
            status = os.lstat(path)
            found.size += status.st_blocks * 512
            if os.path.isdir(path) and not os.path.islink(path):
                waiting += (entry.path for entry in os.scandir(path))
        except OSError:  # gone, or not for us
            continue
    return found


def amount(size: int) -> str:
    """Return bytes as people say them."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit < 2 else f"{value:.1f} {_UNITS[unit]}"


def _folder(place: Place) -> Path:
    return place.databases or place.home / "plane"


def _databases(place: Place, deadline: float) -> Iterator[tuple[str, Sum]]:
    for name in _DATABASES:
        path = _folder(place) / name
        if path.exists():
            beside = (path.with_name(f"{name}{end}") for end in ("", "-wal", "-shm"))
            yield name, count(beside, deadline)


def _inner(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except OSError:
        return []
