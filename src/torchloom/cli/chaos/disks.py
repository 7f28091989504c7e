"""Hit the disk: the file system of a job's checkpoints is filled for a while, if it is a small one.

Only a tmpfs is: nobody's system runs on one that holds a job's checkpoints.
"""

import errno
import os
from pathlib import Path

from torchloom.cli.chaos.plan import Fault
from torchloom.cli.chaos.record import Target
from torchloom.cli.chaos.targets import Aim, Undo, Victim
from torchloom.doctor.folders import existing, mount_of, parse_mounts
from torchloom.launch.host.identity import host_name

FREE = "disk-free"
FILL = ".loom-chaos-fill"
LARGEST_MB = 1024  # of a file system that may be filled
_MB = 1 << 20
_CHUNK = bytes(1 << 20)


def no_disk(fault: Fault, victim: Victim) -> str:
    """Return why the disk cannot be filled, or nothing."""
    root = local_root(victim)
    if root is None:
        return f"{victim.job} keeps no checkpoints on a local disk; disk-full fills only those"
    kind = kind_of_disk(root)
    if kind != "tmpfs":
        return f"{root} is on {kind or 'an unknown disk'}; disk-full fills only a small tmpfs"
    size = _size(root)
    most = min(LARGEST_MB, fault.mb or LARGEST_MB)
    if size > most * _MB:
        return f"{root} is on a tmpfs of {size // _MB} MB; disk-full fills at most {most} MB"
    return ""


def aim_disk(fault: Fault, victim: Victim) -> Aim | None:
    """Return the file that will take all the room; nothing where there is none left to take."""
    root = local_root(victim)
    if root is None or no_disk(fault, victim):
        return None
    path = existing(root) / FILL
    if path.exists():
        return None
    return Aim(Target("disk", node=host_name(), name=str(path)), {"do": FREE, "path": str(path)})


def fill(aim: Aim) -> bool:
    """Take all the room there is."""
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


def free(undo: Undo) -> None:
    """Give the room back."""
    Path(undo["path"]).unlink(missing_ok=True)


def local_root(victim: Victim) -> Path | None:
    """Return where a job's checkpoints are, if that is a folder of this host."""
    root = victim.record().checkpoints
    is_url = "://" in root and not root.startswith("file://")
    return Path(root.removeprefix("file://")) if root and not is_url else None


def kind_of_disk(path: Path) -> str:
    """Return on what kind of file system a folder is."""
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    mount = mount_of(existing(path).resolve(), parse_mounts(text))
    return mount.kind if mount else ""


def _size(path: Path) -> int:
    found = os.statvfs(existing(path))
    return found.f_blocks * found.f_frsize
