"""What a killed test run may leave behind is found by the next one, and only then removed.

A run holds a lock in its folder for as long as it lives; the kernel lets go of it however the run
ends. Every process of a run carries the folder's name in its environment.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..home import until

PREFIX = "loom-hosts-"
MARK = "LOOM_TEST_HOSTS"
LOCK = "owner.lock"


def claim() -> tuple[Path, int]:
    """Make a folder for this run; return it and the lock that says its owner lives."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / "new.lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "new.lock").rename(folder / LOCK)  # nobody sees the lock before it is held
    return folder, lock


def sweep() -> list[Path]:
    """Remove the processes and folders of every run whose owner is dead; return the folders."""
    found = Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}")
    dead = [lock.parent for lock in found if _is_free(lock)]
    for folder in dead:
        end_all({net_of(pid) for pid in carrying(folder.name)})
        shutil.rmtree(folder, ignore_errors=True)
    return dead


def end_all(nets: set[str]) -> None:
    """Kill every process in these network namespaces; never in the one this process lives in."""
    nets = nets - {net_of(os.getpid()), ""}
    end(lambda: {pid for pid in every_pid() if net_of(pid) in nets})


def end(pids: Callable[[], set[int]]) -> None:
    """Kill these processes, and those they start meanwhile, until none is left."""
    until(lambda: not _kill(pids()))


def _kill(pids: set[int]) -> set[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def carrying(mark: str) -> set[int]:
    """Return every process that carries this run's name in its environment."""
    wanted = f"{MARK}={mark}".encode()
    return {pid for pid in every_pid() if wanted in _environ(pid)}


def every_pid() -> list[int]:
    """Return every process of the machine, zombies too."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def net_of(pid: int) -> str:
    """Return the network namespace of a process; nothing when it has ended or is out of sight."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def session_of(pid: int) -> int | None:
    """Return the session of a process; None when it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_free(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):  # another sweep was faster, or the owner lives
        return False
    return True
