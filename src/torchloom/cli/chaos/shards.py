"""Hit a checkpoint: one byte of the newest committed one is another for a while.

Only where an older one is committed too: whoever must go on meanwhile has something to go on from.
The byte is put back where it was, also in a folder that was set aside as damaged.
"""

import os
from pathlib import Path
from typing import Any

from torchloom.checkpoint.errors import CheckpointError
from torchloom.checkpoint.manifest import Manifest
from torchloom.checkpoint.reader import LocalReader
from torchloom.cli.chaos.disks import local_root
from torchloom.cli.chaos.plan import Fault
from torchloom.cli.chaos.record import Target
from torchloom.cli.chaos.targets import Aim, Undo, Victim
from torchloom.launch.host.identity import host_name

PUT_BACK = "byte-back"
_FLIP = 0xFF


def no_shard(fault: Fault, victim: Victim) -> str:
    """Return why no shard can be damaged, or nothing."""
    root = local_root(victim)
    if root is None:
        return f"{victim.job} keeps no checkpoints on a local disk; corrupt-shard needs them there"
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


def damage(aim: Aim) -> bool:
    """Make the byte another; the file's times stay."""
    facts = dict(aim.facts)
    return _write(Path(facts["path"]), facts, facts["byte"], facts["byte"] ^ _FLIP)


def put_back(undo: Undo) -> None:
    """Make the byte what it was, wherever its file is by now; one that was removed needs none."""
    path = Path(undo["path"])
    folder = path.parent
    places = [path, *sorted(folder.parent.glob(f"*{folder.name}*/{path.name}"))]
    for place in places:
        if _write(place, undo, undo["byte"] ^ _FLIP, undo["byte"]):
            return


def _readable(root: Path) -> list[Manifest]:
    """Return the two newest committed checkpoints that say what is in them."""
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


def _write(path: Path, told: Undo, before: int, after: int) -> bool:
    """Change the byte of this very file if it is what it should be; tell whether."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(fd)
        same = found.st_ino == told["inode"] and os.pread(fd, 1, told["offset"]) == bytes([before])
        if same:
            os.pwrite(fd, bytes([after]), told["offset"])
            os.fsync(fd)
            os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
        return same
    finally:
        os.close(fd)
