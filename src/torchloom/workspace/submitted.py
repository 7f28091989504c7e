"""Where a job's sources stood when it was submitted: kept in its folder until it begins."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.workspace.git import Source, source_of

FILE = "source.json"
PATCH = "diff.patch"
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class Submitted:
    """The folder a job was submitted from, the state of its sources, whether it runs a copy."""

    cwd: str
    source: Source | None
    is_copied: bool

    @property
    def commit(self) -> str | None:
        return self.source.facts["commit"] if self.source else None

    @property
    def is_changed(self) -> bool:
        return bool(self.source and self.source.facts["dirty"])

    def is_as(self, source: Source) -> bool:
        """Tell whether sources are still as they were."""
        then = self.source.facts if self.source else {}
        return all(then.get(name) == source.facts[name] for name in ("commit", "diff"))


def keep(
    folder: Path, cwd: str, places: Sequence[Path], is_copied: bool, env: Mapping[str, str]
) -> None:
    """Write down how the first of these places that is in a repository stands."""
    source = source_of(places, env)
    facts = {"cwd": cwd, "is_copied": is_copied, "git": source.facts if source else None}
    _write(folder / FILE, json.dumps(facts, indent=1).encode())
    if source and source.patch:
        _write(folder / PATCH, source.patch)


def kept(folder: Path) -> Submitted | None:
    """Return what was written down; nothing where that is gone."""
    try:
        told: dict[str, Any] = json.loads((folder / FILE).read_bytes())
        facts = told["git"]
        patch = (folder / PATCH).read_bytes() if facts and facts["diff"] else b""
        source = Source(facts, patch) if facts else None
        return Submitted(told["cwd"], source, told["is_copied"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "wb") as file:
        file.write(data)
