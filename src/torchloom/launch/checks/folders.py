"""Whether the folders that hold state can be written, are private, local, and have room."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchloom.launch.checks.filesystems import Mount, existing, mount_of, parse_mounts
from torchloom.launch.checks.finding import Finding, Place, note, ok, problem

ROOM = 2**30  # bytes that a run's logs and records should find free
FEW = 10_000  # inodes
SHM_ROOM = 2**30  # a DataLoader with eight workers passes that much, easily


def home(place: Place) -> Iterator[Finding]:
    """Look at the state folder: it may be shared by hosts, but SQLite files may not be there."""
    remedy = "set LOOM_HOME to another folder"
    if why := _unwritable(place.home):
        yield problem("state", f"{place.home}: {why}", remedy)
        return
    mount = _mount(place, place.home)
    if mount and mount.is_network:
        text = f"{place.home} is on {mount.kind}, a network file system: unfit for SQLite"
        yield note("state", text, "fine for runs and logs; keep databases on a local disk")
    else:
        yield ok("state", f"{place.home}{_on(mount)}")


def runtime(place: Place) -> Iterator[Finding]:
    """Look at the folder for sockets: local, ours, closed to others."""
    folder = place.runtime
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        remedy = "set XDG_RUNTIME_DIR to a local folder of your own"
        yield problem("runtime", f"{folder}: {error.strerror}", remedy)
        return
    mount = _mount(place, folder)
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not stat.S_ISDIR(status.st_mode):
        remedy = f"chmod 700 {folder}, or remove it if it is not yours"
        yield problem("runtime", f"{folder} is open to others", remedy)
    elif mount and mount.is_network:
        text = f"{folder} is on {mount.kind}, a network file system: no sockets, no locks"
        yield problem("runtime", text, "set XDG_RUNTIME_DIR to a local folder, such as one of /tmp")
    else:
        yield ok("runtime", f"{folder}{_on(mount)}")


def logs(place: Place) -> Iterator[Finding]:
    """Look at the folder that the config files send logs to, if they do."""
    if place.logs is None:
        return
    if why := _unwritable(place.logs):
        yield problem(
            "logs", f"{place.logs}: {why}", "set log_dir in .loomconfig to another folder"
        )
        return
    mount = _mount(place, place.logs)
    if mount and mount.is_network:
        text = f"{place.logs} is on {mount.kind}, a network file system"
        yield note(
            "logs", text, "many ranks that print much are slow there; a local log_dir is not"
        )
    else:
        yield ok("logs", f"{place.logs}{_on(mount)}")


def shared_memory(place: Place) -> Iterator[Finding]:
    """Look at /dev/shm, through which DataLoader workers hand over their batches."""
    if not place.shm.is_dir():
        return
    if why := _unwritable(place.shm):
        yield problem("shm", f"{place.shm}: {why}", f"mount a tmpfs on {place.shm}, mode 1777")
        return
    room = shutil.disk_usage(place.shm)
    text = (
        f"{place.shm}: {_gib(room.free)} of {_gib(room.total)} free{_on(_mount(place, place.shm))}"
    )
    if room.free < SHM_ROOM:
        remedy = "too little for DataLoader workers: docker --shm-size 8g, or num_workers=0"
        yield note("shm", text, remedy)
    else:
        yield ok("shm", text)


def disk(place: Place) -> Iterator[Finding]:
    """Count bytes and inodes free where state goes; one line where all are on one disk."""
    seen: set[int] = set()
    for folder in (place.home, place.runtime, place.logs):
        if folder is None:
            continue
        there = existing(folder)
        if there.stat().st_dev not in seen:
            seen.add(there.stat().st_dev)
            yield _room(folder, there)


def _room(folder: Path, there: Path) -> Finding:
    free = shutil.disk_usage(there).free
    counts = os.statvfs(there)
    has_few = counts.f_files > 0 and counts.f_favail < FEW
    text = f"{_gib(free)} free for {folder}"
    if has_few:
        text = f"{counts.f_favail} inodes free for {folder}"
    is_small = shutil.disk_usage(there).total < ROOM  # a small tmpfs for sockets is as it should be
    if has_few or (free < ROOM and not is_small) or free < 2**20:
        return problem("disk", text, "`loom rm --ended` frees logs; or set LOOM_HOME elsewhere")
    return ok("disk", text)


def _unwritable(folder: Path) -> str:
    """Return why no file can be made in a folder; it is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _mount(place: Place, path: Path) -> Mount | None:
    try:
        text = (place.root / "proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return None
    return mount_of(existing(path).resolve(), parse_mounts(text))


def _on(mount: Mount | None) -> str:
    return f" ({mount.kind})" if mount else ""


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
