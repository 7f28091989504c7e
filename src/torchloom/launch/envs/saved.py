"""A job's variables in a file, for a shell that is not in the job."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchloom.errors import Failure, NotFound, UserError, shorten
from torchloom.launch.environments import World

FORMAT = "loom-env/1"


class BadEnvFile(UserError):
    """A file that `env save` did not write."""

    code = "bad_env_file"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shorten(str(path))}: {why}; write it with `loom env save` inside the job"
        )


@dataclass(frozen=True, slots=True)
class SavedEnv:
    """Variables, and the job they are of."""

    variables: Mapping[str, str]
    flavour: str
    job_id: str | None
    hosts: tuple[str, ...]
    saved_at: str
    saved_on: str

    @classmethod
    def of(cls, variables: Mapping[str, str], world: World, own_host: str) -> "SavedEnv":
        """Return what is to be saved now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(variables, world.flavour, world.job_id, world.hosts, now, own_host)

    @property
    def name(self) -> str:
        """What its file is called when nobody says otherwise."""
        job = "".join(char if char.isalnum() or char in "-_" else "-" for char in self.job_id or "")
        return f"{self.flavour}-{job}.json" if job else f"{self.flavour}.json"

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "hosts": list(self.hosts)}

    def write(self, path: Path) -> None:
        """Replace the file in one step; nobody else may read it."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w") as file:
                file.write(json.dumps(self.to_dict(), indent=1) + "\n")
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            text = f"cannot write {path}: {error.strerror}; name another FILE"
            raise Failure(text) from error


def folder(home: Path) -> Path:
    """Return where files go that nobody named."""
    return home / "envs"


def newest(home: Path) -> Path:
    """Return the file that was saved last."""
    found = sorted(folder(home).glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        where = f"{folder(home)} is empty; `loom env save` inside the job writes one"
        raise NotFound("saved environment", "newest", (), where)
    return found[-1]


def read(path: Path) -> SavedEnv:
    """Return what was saved; names and values are checked, for a shell will take them."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise BadEnvFile(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise BadEnvFile(path, "not a saved environment") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadEnvFile(path, "not a saved environment")
    try:
        return _parsed(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadEnvFile(path, "it is damaged") from error


def _parsed(data: dict[str, Any]) -> SavedEnv:
    variables = dict(data["variables"])
    for name, value in variables.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise TypeError(name)
    return SavedEnv(
        variables,
        str(data["flavour"]),
        None if data["job_id"] is None else str(data["job_id"]),
        tuple(map(str, data["hosts"])),
        str(data["saved_at"]),
        str(data["saved_on"]),
    )
