"""Record what surrounds a job: where its source stands, its packages, its machine, its seeds.

All of it is read beside the weaver's loop, from files and the kernel; git alone is started.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.launch.records.folder import RunFolder, now
from torchloom.weaver.store.rows import Device, Rank
from torchloom.weaver.surroundings import hardware, origin, packages
from torchloom.weaver.surroundings.origin import Origin
from torchloom.workspace import git, submitted

FACT = "experiment/"  # and a run's id: the name of the row that holds its record
FILE = "experiment.json"
PATCH = submitted.PATCH
_BRIEF = ("commit", "branch", "dirty")
_PRIVATE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the weaver knows of a job whose surroundings are to be recorded."""

    job: str
    run: str
    host: str
    world_size: int | None
    ranks: tuple[Rank, ...] = ()
    devices: tuple[Device, ...] = ()
    spec: Mapping[str, Any] | None = None  # as it was submitted
    env: Mapping[str, str] = field(default_factory=dict)  # the weaver's own


def recorded(wanted: Wanted) -> dict[str, Any]:
    """Return the record of a job that has just begun, and keep it in its run's folder."""
    found = _origin(wanted) or Origin()
    source, changes = _source(found, wanted)
    python, notes = _interpreter(found, wanted)
    installed = packages.packages_of(python.folders) if python else {}
    spec = wanted.spec or found.spec
    record = {
        "run_id": wanted.run,
        "recorded_at": now(),
        "cwd": found.cwd or None,
        "argv": origin.without_secrets(found.argv),
        "interpreter": python.path if python else None,
        "env": origin.variables(found.env),
        "spec": origin.spec_shown(spec),
        "git": source.facts if source else None,
        "packages": installed,
        "python": python.version if python else None,
        "torch": installed.get("torch"),
        "seeds": {
            "spec": (spec or {}).get("seed"),
            "PYTHONHASHSEED": found.env.get("PYTHONHASHSEED"),
        },
        "hardware": machine(wanted),
        "world_size": wanted.world_size,
        "notes": [*changes, *notes],
    }
    _keep(found.folder, record, source.patch if source else b"")
    return record


def machine(wanted: Wanted) -> dict[str, Any]:
    """Return the hardware that a job has."""
    nodes = [rank.node for rank in wanted.ranks if rank.node]
    return hardware.hardware(wanted.host, nodes, wanted.devices)


def completed(record: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return a record with what is known only when the ranks have come: nodes and devices."""
    if not wanted.ranks:
        return dict(record)
    size = wanted.world_size or record.get("world_size")
    whole = {**record, "hardware": machine(wanted), "world_size": size}
    if whole != record:
        with contextlib.suppress(OSError):
            _write(_folder(wanted), FILE, _json(whole))
    return whole


def brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lists show and search: little, for there are many of them."""
    source, spec = record.get("git") or {}, record.get("spec") or {}
    return {
        **{name: source.get(name) for name in _BRIEF},
        "python": record.get("python"),
        "torch": record.get("torch"),
        "project": spec.get("project", ""),
        "group": spec.get("group", ""),
        "tags": list(spec.get("tags", ())),
    }


def _origin(wanted: Wanted) -> Origin | None:
    found = origin.of_folder(RunFolder.named(wanted.job)) if is_name(wanted.job) else None
    if found is not None:
        return found
    here = (rank.pid for rank in wanted.ranks if rank.node == wanted.host and rank.state == "up")
    return next(filter(None, map(origin.of_process, here)), None)


def _source(found: Origin, wanted: Wanted) -> tuple[git.Source | None, list[str]]:
    """Return the state of a job's sources: what it runs may have been edited since it was queued.

    Where it runs a copy, or nobody can tell here, it is what was submitted.
    """
    here = git.source_of(found.sources, wanted.env)
    then = submitted.kept(found.submitted) if found.submitted else None
    if then is None or (here is not None and not then.is_copied and then.is_as(here)):
        return here, []
    if here is None or then.is_copied:
        return then.source, []
    return here, [f"the sources were changed after the submission, which was at {then.commit}"]


def _interpreter(found: Origin, wanted: Wanted) -> tuple[packages.Interpreter | None, list[str]]:
    """Return the interpreter of a job: as it is named, else as the kernel shows it."""
    home = Path(wanted.env["HOME"]) if "HOME" in wanted.env else None
    for path in _candidates(found):
        if python := packages.interpreter(path, home):
            return python, []
    return None, ["the job's interpreter could not be found; its packages are not known"]


def _candidates(found: Origin) -> Iterable[Path]:
    words = [found.python, *(word for word in found.argv[:1] if "python" in os.path.basename(word))]
    for word in filter(None, words):
        path = shutil.which(word, path=found.env.get("PATH"))
        if path:
            yield Path(found.cwd, path)
    for pid in found.pids:
        with contextlib.suppress(OSError):
            yield Path(os.readlink(f"/proc/{pid}/exe"))


def _keep(folder: Path | None, record: Mapping[str, Any], patch: bytes) -> None:
    """Write both files; a full disk costs them, not the record in the database."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        if patch:
            _write(folder, PATCH, patch)
        _write(folder, FILE, _json(record))


def _folder(wanted: Wanted) -> Path:
    if not is_name(wanted.job):
        raise FileNotFoundError(wanted.job)
    return RunFolder.named(wanted.job).path


def _write(folder: Path, name: str, data: bytes) -> None:
    """Replace a file in one step; a folder that is gone is not made again."""
    partial = folder / f"{name}.{os.getpid()}.partial"
    try:
        with open(os.open(partial, _FLAGS, _PRIVATE), "wb") as file:
            file.write(data)
        partial.replace(folder / name)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()


def is_name(job: str) -> bool:
    """Tell whether a job's id can be the name of a folder; a stranger's may be anything."""
    return bool(job) and not job.startswith(".") and "/" not in job and "\0" not in job
