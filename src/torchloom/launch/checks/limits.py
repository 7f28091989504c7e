"""What the kernel lets this user have, and whether the clock can be trusted."""

import contextlib
import ctypes
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torchloom.launch.checks.allocation import world_of
from torchloom.launch.checks.finding import Finding, Place, note, ok, problem

FILES, FILES_LOW = 4096, 256  # a rank with workers and NCCL opens hundreds
PROCESSES = 1024
SKEW = 2.0  # seconds between this clock and that of the file server
_UNSYNCHRONISED = 5  # what adjtimex returns: TIME_ERROR


def limits(place: Place) -> Iterator[Finding]:
    """Compare open files, processes and locked memory with what ranks need."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < FILES:
        make = problem if files < FILES_LOW else note
        raised = min(most, 65536) if most > files else 65536
        yield make("limits", f"{files} open files", f"ulimit -n {raised}")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if 0 <= processes < PROCESSES:
        yield note("limits", f"{processes} processes and threads", "ulimit -u 16384")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked >= 0 and any((place.root / "sys/class/infiniband").glob("*")):
        text = f"{locked >> 10} KiB of locked memory; InfiniBand wants all"
        yield note("limits", text, "ulimit -l unlimited, or memlock in /etc/security/limits.conf")
    if (files < 0 or files >= FILES) and (processes < 0 or processes >= PROCESSES):
        yield ok("limits", f"{_count(files)} open files, {_count(processes)} processes")


def clock(place: Place) -> Iterator[Finding]:
    """Compare our time with the state folder's, and ask the kernel whether it is kept in step."""
    skew = _skew(place.home)
    if abs(skew) > SKEW:
        text = f"{skew:+.1f} s against the file server of {place.home}"
        yield problem("clock", text, "start chrony or ntpd here; records are ordered by time")
    elif _is_synchronised() is False and _has_peers(place):
        yield note("clock", "not kept in step with others", "start chrony or ntpd on every host")
    else:
        yield ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _count(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


def _has_peers(place: Place) -> bool:
    world = world_of(place)
    return world is not None and len(world.hosts) > 1


def _skew(folder: Path) -> float:
    """Return how far ahead the clock is that stamps this folder's files; 0 if it cannot be told."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder) as probe:
        before = time.time()
        probe.write(b"x")
        probe.flush()
        stamped, after = Path(probe.name).stat().st_mtime, time.time()
        return min(0.0, stamped - before) or max(0.0, stamped - after)
    return 0.0


def _is_synchronised() -> bool | None:
    """Ask the kernel; nothing where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        answer = int(libc.adjtimex(ctypes.create_string_buffer(512)))  # all zero: only read
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _UNSYNCHRONISED
