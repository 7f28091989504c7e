"""Which jobs were submitted to an engine from this state folder: one small file each."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.launch.records.parcel import write_private
from torchloom.specs.api import make_app_handle
from torchloom.specs.dataclass import dataclass

_FOLDER = "engines"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One job: what the engine calls it, what it is here, and where its folder is."""

    job: str
    engine: str
    run_id: str
    name: str
    session: str
    folder: str
    created_at: str = ""
    replicas: Mapping[str, int] = field(default_factory=dict)  # by role
    submitted_at: float = 0.0  # unix seconds, for the order


class Index:
    """The jobs of one engine; a file is replaced as a whole, so no reader sees half of one."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    @property
    def path(self) -> Path:
        return settings.loom_home() / _FOLDER / self._engine

    def add(self, entry: IndexEntry) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._file(entry.job), json.dumps(asdict(entry)))

    def get(self, job: str) -> IndexEntry | None:
        """Return a job by its number; what is no number names none."""
        if not job or "/" in job or job.startswith("."):
            return None
        return _read(self._file(job))

    def all(self) -> list[IndexEntry]:
        """Return every job, newest first."""
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(self.path) if name.endswith(".json")]
            found = [entry for name in names if (entry := _read(self.path / name))]
            return sorted(found, key=lambda entry: entry.submitted_at, reverse=True)
        return []

    def remove(self, job: str) -> None:
        self._file(job).unlink(missing_ok=True)

    def _file(self, job: str) -> Path:
        return self.path / f"{job}.json"


def engines() -> list[str]:
    """Return the engines to which anything was submitted."""
    with contextlib.suppress(OSError):
        return sorted(os.listdir(settings.loom_home() / _FOLDER))
    return []


def find(reference: str) -> Iterator[IndexEntry]:
    """Yield the jobs of all engines that a person may mean: by run, number, name or beginning."""
    entries = [entry for engine in engines() for entry in Index(engine).all()]
    exact = [entry for entry in entries if reference in (entry.run_id, entry.job)]
    if exact:
        yield from exact[:1]
        return
    named = [entry for entry in entries if entry.name == reference]
    yield from named[:1] or [one for one in entries if one.run_id.startswith(reference)]


def handles() -> dict[str, dict[str, str]]:
    """Return handle and engine of every run that is another engine's, by its id."""
    entries = [entry for engine in engines() for entry in Index(engine).all()]
    return {
        entry.run_id: {
            "handle": make_app_handle(entry.engine, entry.session, entry.job),
            "scheduler": entry.engine,
        }
        for entry in reversed(entries)  # the newest job of a run is the one that counts
    }


def _read(path: Path) -> IndexEntry | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        data: dict[str, Any] = json.loads(path.read_bytes())
        return IndexEntry(**{name: data[name] for name in IndexEntry.__slots__ if name in data})
    return None
