"""Faults of storage: the file system of a job's checkpoints is filled, or a shard is damaged.

Only a small tmpfs is filled: no other program's data is on one that has a job's checkpoints.
"""

import errno
import os
from pathlib import Path
from typing import Any

from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Target
from torchloom.chaos.targets import Aim, Undo, Victim
from torchloom.checkpoint.errors import CheckpointError
from torchloom.checkpoint.manifest import Manifest
from torchloom.checkpoint.reader import LocalReader
from torchloom.doctor.folders import existing, mount_of, parse_mounts
from torchloom.launch.host.identity import host_name

FREE = "disk-free"
FILL = ".loom-chaos-fill"
LARGEST_MB = 1024  # of a file system that may be filled
_MB = 1 << 20
_CHUNK = bytes(1 << 20)
PUT_BACK = "byte-back"
_FLIP = 0xFF


def no_disk(fault: Fault, victim: Victim) -> str:
    """Return why the disk cannot be filled; empty if it can."""
    root = local_root(victim)
    if root is None:
        return f"{victim.job} has no checkpoints on a local disk; disk-full fills only those"
    kind = kind_of_disk(root)
    if kind != "tmpfs":
        return f"{root} is on {kind or 'an unknown disk'}; disk-full fills only a small tmpfs"
    size = _size(root)
    most = min(LARGEST_MB, fault.mb or LARGEST_MB)
    if size > most * _MB:
        return f"{root} is on a tmpfs of {size // _MB} MB; disk-full fills at most {most} MB"
    return ""


def aim_disk(fault: Fault, victim: Victim) -> Aim | None:
    """Return the file that will fill the disk; None if the disk cannot be filled."""
    root = local_root(victim)
    if root is None or no_disk(fault, victim):
        return None
    path = existing(root) / FILL
    if path.exists():
        return None
    return Aim(Target("disk", node=host_name(), name=str(path)), {"do": FREE, "path": str(path)})


def fill_disk(aim: Aim) -> bool:
    """Fill the disk."""
    fd = os.open(aim.target.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        while os.write(fd, _CHUNK):
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(fd)
    return True


def free_disk(undo: Undo) -> None:
    """Remove the file that fills the disk."""
    Path(undo["path"]).unlink(missing_ok=True)


def local_root(victim: Victim) -> Path | None:
    """Return the folder of a job's checkpoints, if it is on this host."""
    root = victim.record().checkpoints
    is_url = "://" in root and not root.startswith("file://")
    return Path(root.removeprefix("file://")) if root and not is_url else None


def kind_of_disk(path: Path) -> str:
    """Return the kind of file system of a folder."""
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    mount = mount_of(existing(path).resolve(), parse_mounts(text))
    return mount.kind if mount else ""


def _size(path: Path) -> int:
    found = os.statvfs(existing(path))
    return found.f_blocks * found.f_frsize


def no_shard(fault: Fault, victim: Victim) -> str:
    """Return why no shard can be damaged; empty if one can."""
    root = local_root(victim)
    if root is None:
        return f"{victim.job} has no checkpoints on a local disk; corrupt-shard needs them there"
    if len(_readable(root)) < 2:
        return (
            f"{victim.job} has fewer than two committed checkpoints; corrupt-shard leaves one"
            f" whole: wait for two, or `loom checkpoint {victim.job}`"
        )
    return ""


def aim_shard(fault: Fault, victim: Victim) -> Aim | None:
    """Return a byte in the middle of a shard of the newest checkpoint."""
    root = local_root(victim)
    found = _readable(root) if root is not None else []
    if root is None or len(found) < 2:
        return None
    newest = found[0]
    wanted = [shard for shard in newest.shards if fault.rank in (None, shard.rank)]
    if not wanted or not wanted[0].size:
        return None
    folder = Path(LocalReader(str(root)).place_of(newest.step))
    undo = _byte(folder / wanted[0].name, wanted[0].size // 2)
    if undo is None:
        return None
    target = Target("shard", wanted[0].rank, node=host_name(), name=undo["path"])
    return Aim(target, {"do": PUT_BACK, **undo}, None, undo)


def damage_shard(aim: Aim) -> bool:
    """Change the byte; the file's times stay the same."""
    facts = dict(aim.facts)
    return _write(Path(facts["path"]), facts, facts["byte"], facts["byte"] ^ _FLIP)


def put_back(undo: Undo) -> None:
    """Restore the byte, wherever the file was moved; a removed file is ignored."""
    path = Path(undo["path"])
    folder = path.parent
    places = [path, *sorted(folder.parent.glob(f"*{folder.name}*/{path.name}"))]
    for place in places:
        if _write(place, undo, undo["byte"] ^ _FLIP, undo["byte"]):
            return


def _readable(root: Path) -> list[Manifest]:
    """Return the manifests of the two newest committed checkpoints with readable ones."""
    reader, found = LocalReader(str(root)), list[Manifest]()
    for step in reader.committed():
        try:
            found.append(reader.manifest(step))
        except CheckpointError:
            continue
        if len(found) == 2:
            break
    return found


def _byte(path: Path, offset: int) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            byte, inode = file.read(1), os.fstat(file.fileno()).st_ino
    except OSError:
        return None
    return {"path": str(path), "offset": offset, "byte": byte[0], "inode": inode} if byte else None


def _write(path: Path, note: Undo, before: int, after: int) -> bool:
    """Change a byte if the file and its value are the expected ones; return whether it did."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(fd)
        same = found.st_ino == note["inode"] and os.pread(fd, 1, note["offset"]) == bytes([before])
        if same:
            os.pwrite(fd, bytes([after]), note["offset"])
            os.fsync(fd)
            os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
        return same
    finally:
        os.close(fd)
