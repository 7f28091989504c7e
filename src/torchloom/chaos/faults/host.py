"""Faults of the host: a link goes down or slow, a clock jumps, a disk is full, a shard damaged.

A link is `IFACE` in this network namespace, or `NETNS/IFACE`, where NETNS is a name that `ip netns`
lists or the pid of a process in that namespace. Only a small tmpfs is filled: no other program's
data is on one that has a job's checkpoints.
"""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Target
from torchloom.chaos.targets import Aim, Undo, Victim, target_of
from torchloom.checkpoint.errors import CheckpointError
from torchloom.checkpoint.manifest import Manifest
from torchloom.checkpoint.reader import LocalReader
from torchloom.doctor.folders import existing, mount_of, parse_mounts
from torchloom.errors import Failure
from torchloom.launch.host.identity import ProcessIdentity, host_name

BACK = "clock-back"
VARIABLE = "FAKETIME_TIMESTAMP_FILE"
STEADY = "FAKETIME_DONT_FAKE_MONOTONIC=1"
JUMP = 3600.0  # seconds
_LIBRARY = "libfaketime"
UP, FAST = "link-up", "link-fast"
RATE = ("rate", "1mbit", "burst", "32kb", "latency", "400ms")
_NAMED = Path("/run/netns")
_OWN = ("noqueue", "pfifo_fast", "fq_codel", "fq", "mq")  # that the kernel gives by itself
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 30.0
FREE = "disk-free"
FILL = ".loom-chaos-fill"
LARGEST_MB = 1024  # of a file system that may be filled
_MB = 1 << 20
_CHUNK = bytes(1 << 20)
PUT_BACK = "byte-back"
_FLIP = 0xFF


def no_clock(fault: Fault, victim: Victim) -> str:
    """Return why no rank's clock can be changed; empty if one can."""
    ranks = victim.ranks()
    wanted = [fault.rank] if fault.rank is not None else sorted(ranks)
    if any(rank in ranks and file_of(ranks[rank]) for rank in wanted):
        return ""
    which = f"rank {fault.rank}" if fault.rank is not None else f"no rank of {victim.job}"
    verb = "is not running" if fault.rank is not None else "is running"
    return (
        f"{which} {verb} under libfaketime with {VARIABLE} and {STEADY}; start the job with"
        f" -e LD_PRELOAD=.../libfaketime.so.1 -e {VARIABLE}=FILE -e FAKETIME_NO_CACHE=1"
        f" -e {STEADY}"
    )


def aim_clock(fault: Fault, victim: Victim) -> Aim | None:
    """Return the chosen rank, or the lowest whose clock can be changed."""
    for rank, process in sorted(victim.ranks().items()):
        path = file_of(process) if fault.rank in (None, rank) else None
        if path is not None:
            undo = {"do": BACK, "path": str(path), "text": _read(path)}
            target = target_of("clock", process, rank, str(path))
            return Aim(target, undo, process, {"by": JUMP if fault.by is None else fault.by})
    return None


def step_clock(aim: Aim) -> bool:
    """Change the clock, if its process is still running."""
    if aim.process is None or not aim.process.is_alive():
        return False
    _replace(Path(aim.target.name), f"{aim.facts['by']:+f}\n")
    return True


def set_clock_back(undo: Undo) -> None:
    """Restore the clock."""
    path = Path(undo["path"])
    if undo["text"] is not None:
        _replace(path, undo["text"])
    elif path.exists():
        _replace(path, "+0\n")  # without a file, the time would stand still


def file_of(process: ProcessIdentity) -> Path | None:
    """Return the file with the offset of a process's clock; None if it uses the machine's."""
    folder = Path(f"/proc/{process.pid}")
    try:
        words = (folder / "environ").read_bytes().split(b"\0")
        is_faked = _LIBRARY in (folder / "maps").read_text()
    except OSError:
        return None
    named = next((word for word in words if word.startswith(f"{VARIABLE}=".encode())), b"")
    path = Path(os.fsdecode(named.partition(b"=")[2]))
    is_clock = is_faked and STEADY.encode() in words
    return path if is_clock and path.is_absolute() and os.access(path.parent, os.W_OK) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    """Write a file atomically: half of it would be another time."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)


class LinkNotTouched(Failure):
    """A command on a network interface failed."""

    code = "link_not_touched"

    def __init__(self, words: Sequence[str], stderr: str) -> None:
        super().__init__(f"`{' '.join(words)}` failed: {stderr.strip() or 'no output'}")


def no_link(fault: Fault, victim: Victim) -> str:
    """Return why a link cannot be hit; empty if it can."""
    if os.geteuid() != 0:
        return f"{fault.kind} needs root; run it with sudo, or leave this kind out"
    if lacking := [one for one in ("ip", "tc", "nsenter") if not shutil.which(one, path=_PATH)]:
        return f"{fault.kind} needs {lacking[0]}; install iproute2 and util-linux"
    if not fault.link:
        return f"{fault.kind} needs a link; give --link IFACE or --link NETNS/IFACE"
    found = _look(fault.link)
    if found is None:
        return f"no interface {fault.link}; `ip link` and `ip netns` list them"
    return _not_ours(fault, found)


def _not_ours(fault: Fault, found: dict[str, Any]) -> str:
    """Return why an existing interface must not be changed; empty if it may."""
    link = fault.link
    if "LOOPBACK" in found["flags"]:
        return f"{link} is a loopback, not a link between hosts; name another"
    if "/" not in link and _is_default_route(link):
        return f"{link} has this machine's default route; name one of a namespace: NETNS/IFACE"
    if fault.kind == "slow-link" and found.get("qdisc") not in _OWN:
        return f"{link} is already shaped ({found.get('qdisc')}); remove that qdisc first"
    return ""


def aim_link(fault: Fault, victim: Victim) -> Aim | None:
    """Return the interface, if it is up and not shaped."""
    found = _look(fault.link)
    is_cut = fault.kind == "cut-link"
    if found is None or "UP" not in found["flags"]:
        return None
    if not is_cut and found.get("qdisc") not in _OWN:
        return None
    target = Target("link", node=host_name(), name=fault.link)
    return Aim(target, {"do": UP if is_cut else FAST, "link": fault.link})


def cut_link(aim: Aim) -> bool:
    """Set the interface down: both sides get no packets and no reset."""
    _act(aim.target.name, "ip", "link", "set", "dev", _interface(aim.target.name), "down")
    return True


def slow_link(aim: Aim) -> bool:
    """Limit the interface to `RATE`."""
    link = aim.target.name
    _act(link, "tc", "qdisc", "add", "dev", _interface(link), "root", "tbf", *RATE)
    return True


def mend_link(undo: Undo) -> None:
    """Set the interface up again, if it exists."""
    if _look(undo["link"]) is not None:
        _act(undo["link"], "ip", "link", "set", "dev", _interface(undo["link"]), "up")


def quicken_link(undo: Undo) -> None:
    """Remove the limit of `slow_link`."""
    found = _look(undo["link"])
    if found is not None and found.get("qdisc") == "tbf":
        _act(undo["link"], "tc", "qdisc", "del", "dev", _interface(undo["link"]), "root")


def _look(link: str) -> dict[str, Any] | None:
    """Return the kernel's description of an interface; None if it does not exist."""
    done = _run(link, "ip", "-j", "link", "show", "dev", _interface(link))
    found = json.loads(done.stdout) if done is not None and done.returncode == 0 else []
    return found[0] if found else None


def _is_default_route(link: str) -> bool:
    done = _run(link, "ip", "-j", "route", "show", "default")
    routes = json.loads(done.stdout or "[]") if done is not None and done.returncode == 0 else []
    return any(route.get("dev") == _interface(link) for route in routes)


def _act(link: str, *words: str) -> None:
    done = _run(link, *words)
    if done is None or done.returncode:
        raise LinkNotTouched(words, done.stderr if done else f"no namespace of {link}")


def _run(link: str, *words: str) -> "subprocess.CompletedProcess[str] | None":
    """Run a command in the namespace of the interface; None if the namespace is gone."""
    space = _namespace(link)
    if space is None:
        return None
    enter = ["nsenter", f"--net={space}", "--"] if space else []
    return subprocess.run(
        [*enter, *words],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
        env={"PATH": _PATH},
    )


def _namespace(link: str) -> str | None:
    """Return the file of a link's namespace; "" is this one, None if it does not exist."""
    name, slash, _ = link.rpartition("/")
    if not slash:
        return ""
    place = Path(f"/proc/{name}/ns/net") if name.isdecimal() else _NAMED / name
    is_plain = name not in ("", ".", "..") and "/" not in name
    return str(place) if is_plain and place.exists() else None


def _interface(link: str) -> str:
    return link.rpartition("/")[2]


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
