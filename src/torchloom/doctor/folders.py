"""Whether the folders that hold state can be written, are private, local, and have room."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchloom.doctor.findings import CheckFinding, HostPlace, note, ok, problem

PATIENCE = 3.0  # seconds for all of it; folders of runs can be many
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_DATABASES = ("state.db", "records.db")
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph"),
        *("9p", "afs", "panfs", "pvfs2", "orangefs", "wekafs", "glusterfs", "virtiofs", "ncpfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.daos", "fuse.gcsfuse", "fuse.s3fs"),
        *("fuse.goofys", "fuse.mount-s3", "fuse.juicefs", "fuse.rclone", "ocfs2", "gfs2", "vboxsf"),
    )
)
ROOM = 2**30  # bytes that a run's logs and records should find free
FEW = 10_000  # inodes
SHM_ROOM = 2**30  # a DataLoader with eight workers passes that much, easily


@dataclass(slots=True)
class DiskUsage:
    """Bytes on the disk, and whether time was enough to count all of them."""

    size: int = 0
    is_whole: bool = True

    def __str__(self) -> str:
        return f"{'' if self.is_whole else 'more than '}{amount(self.size)}"


def sizes(place: HostPlace) -> Iterator[CheckFinding]:
    """Report the sizes of what is kept; how long is the user's choice."""
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
    shown = [f"{name} {count([place.home / at], deadline)}" for at, name in others.items()]
    yield ok("caches", ", ".join(shown))


def count(paths: Iterable[Path], deadline: float) -> DiskUsage:
    """Return what files and folders take on their disk, links not followed."""
    found, waiting = DiskUsage(), [str(path) for path in paths]
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
    """Return bytes in a readable unit."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit < 2 else f"{value:.1f} {_UNITS[unit]}"


def _folder(place: HostPlace) -> Path:
    return place.databases or place.home / "plane"


def _databases(place: HostPlace, deadline: float) -> Iterator[tuple[str, DiskUsage]]:
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


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: where, and what."""

    point: Path
    kind: str

    @property
    def is_network(self) -> bool:
        """Whether other hosts may see it, with other rules for locks and sockets."""
        return self.kind in NETWORK


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Read `/proc/self/mountinfo`: the point is the fifth word, the kind follows a lone dash."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, kind = before.split(" "), after.split(" ")[0]
        if dash and len(words) > 4:
            mounts.append(Mount(Path(_unescape(words[4])), kind))
    return tuple(mounts)


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount a path is on: the deepest, and of several on one point the last."""
    best: Mount | None = None
    for mount in mounts:
        deeper = best is None or len(mount.point.parts) >= len(best.point.parts)
        if deeper and path.is_relative_to(mount.point):
            best = mount
    return best


def existing(path: Path) -> Path:
    """Return the folder itself or the nearest one above that is there."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))


def _unescape(text: str) -> str:
    """Undo the kernel's octal for space, tab, newline and backslash."""
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, char)
    return text


def home(place: HostPlace) -> Iterator[CheckFinding]:
    """Check the state folder: it may be shared by hosts, but SQLite files may not be there."""
    remedy = "set LOOM_HOME to another folder"
    advice = "fine for runs and logs; keep databases on a local disk"
    yield from _written("state", place, place.home, remedy, ": unfit for SQLite", advice)


def runtime(place: HostPlace) -> Iterator[CheckFinding]:
    """Check the folder for sockets: local, ours, closed to others."""
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


def logs(place: HostPlace) -> Iterator[CheckFinding]:
    """Check the folder that the config files send logs to, if they do."""
    if place.logs is not None:
        remedy = "set log_dir in .loomconfig to another folder"
        advice = "logs of many ranks are slow there; a local log_dir is faster"
        yield from _written("logs", place, place.logs, remedy, "", advice)


def _written(
    name: str, place: HostPlace, folder: Path, remedy: str, unfit: str, advice: str
) -> Iterator[CheckFinding]:
    """Check a folder that is written to; the advice is for one that other hosts share."""
    if why := _unwritable(folder):
        yield problem(name, f"{folder}: {why}", remedy)
        return
    mount = _mount(place, folder)
    if mount and mount.is_network:
        yield note(name, f"{folder} is on {mount.kind}, a network file system{unfit}", advice)
    else:
        yield ok(name, f"{folder}{_on(mount)}")


def shared_memory(place: HostPlace) -> Iterator[CheckFinding]:
    """Check /dev/shm, through which DataLoader workers hand over their batches."""
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


def disk(place: HostPlace) -> Iterator[CheckFinding]:
    """Count bytes and inodes free where state goes; one line where all are on one disk."""
    seen: set[int] = set()
    for folder in (place.home, place.runtime, place.logs):
        if folder is None:
            continue
        there = existing(folder)
        if there.stat().st_dev not in seen:
            seen.add(there.stat().st_dev)
            yield _room(folder, there)


def _room(folder: Path, there: Path) -> CheckFinding:
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


def _mount(place: HostPlace, path: Path) -> Mount | None:
    try:
        text = (place.root / "proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return None
    return mount_of(existing(path).resolve(), parse_mounts(text))


def _on(mount: Mount | None) -> str:
    return f" ({mount.kind})" if mount else ""


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
