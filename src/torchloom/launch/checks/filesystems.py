"""On what kind of file system each folder is that holds state."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph"),
        *("9p", "afs", "panfs", "pvfs2", "orangefs", "wekafs", "glusterfs", "virtiofs", "ncpfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.daos", "fuse.gcsfuse", "fuse.s3fs"),
        *("fuse.goofys", "fuse.mount-s3", "fuse.juicefs", "fuse.rclone", "ocfs2", "gfs2", "vboxsf"),
    )
)


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
