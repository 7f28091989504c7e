"""The single looks of `loom doctor`: each returns what it saw and whether that is well."""

import contextlib
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from torchloom import settings
from torchloom.launch import catalog, descendants, devices
from torchloom.launch.folder import remove_debris

_ROOM = 2**30


class Finding(NamedTuple):
    """One look."""

    name: str
    ok: bool
    text: str


def python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    return Finding("python", sys.version_info >= (3, 11), text)


def torch() -> Finding:
    """Torch is not needed to submit; so its absence is said, not blamed."""
    found = find_spec("torch") is not None
    return Finding(
        "torch", True, "installed" if found else "not here: pip install torchloom[torch]"
    )


def accelerators() -> Finding:
    found = devices.visible(settings.environment())
    return Finding("accelerators", True, ", ".join(found) or "none; runs use the CPU")


def state_folder() -> Finding:
    home = settings.loom_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        return Finding("state", False, f"{home}: {error.strerror}; set LOOM_HOME to another folder")
    return Finding("state", True, str(home))


def runtime_folder() -> Finding:
    """It holds what must not be read by others: a folder somebody else owns is not ours to use."""
    folder = settings.runtime_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return Finding("runtime", False, f"{folder}: {error.strerror}")
    safe = status.st_uid == os.getuid() and not status.st_mode & 0o077
    return Finding("runtime", safe, str(folder) if safe else f"{folder} is open to others")


def room() -> Finding:
    home = settings.loom_home()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    return Finding("disk", free > _ROOM, f"{free / 2**30:.1f} GiB free for {home}")


def leftovers(clean: bool) -> Finding:
    """Look for processes of jobs that are over, and for half-made folders."""
    found = {app_id: pids for app_id, pids in _living().items() if _is_over(app_id)}
    if clean:
        for pids in found.values():
            descendants.send(pids, signal.SIGKILL)
        ended, removed = sum(map(len, found.values())), remove_debris()
        return Finding("leftovers", True, f"ended {ended} processes, removed {removed} folders")
    if not found:
        return Finding("leftovers", True, "none")
    text = "; ".join(f"{app_id}: {len(pids)} processes" for app_id, pids in found.items())
    return Finding("leftovers", False, f"{text}; `loom doctor --clean` ends them")


def _living() -> dict[str, set[int]]:
    """Return the processes of every job by its id, in one pass over all processes."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    mark = f"{descendants.JOB_VARIABLE}=".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            for entry in path.read_bytes().split(b"\0"):
                if entry.startswith(mark):
                    found[os.fsdecode(entry[len(mark) :])].add(int(path.parent.name))
    return found


def _is_over(app_id: str) -> bool:
    record = catalog.record(app_id)
    return record is not None and record.is_over()
