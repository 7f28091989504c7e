"""One plane a user, state folder and host: whoever holds the locks is it.

The kernel lets go of the lock with the process, so a plane that was killed, or lived before the
last boot, is in nobody's way.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from torchloom.errors import Failure


class HomeTaken(Failure):
    """A plane of this state folder runs on this host, out of the reach of this shell."""

    code = "home_taken"

    def __init__(self, place: str) -> None:
        where = Path(place).parents[1] if place else "another folder"
        super().__init__(
            f"the plane of this LOOM_HOME has its sockets in {place or where}; "
            f"set XDG_RUNTIME_DIR={where} to reach it"
        )


@contextlib.contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold the lock for as long as the block lasts; yield false when another process has it."""
    fd = _locked(path)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


@contextlib.contextmanager
def hold_home(path: Path, place: Path) -> Iterator[None]:
    """Hold the lock of a state folder on this host, and let it say where the sockets are.

    Shells of one user may disagree about the folder of sockets, but two planes must not share one
    database. A file system without locks cannot tell; then the epoch of the weavers decides.
    """
    try:
        fd = _locked(path)
    except OSError:
        yield
        return
    if fd is None:
        raise HomeTaken(path.read_text())
    try:
        os.ftruncate(fd, 0)
        os.write(fd, os.fsencode(place))
        yield
    finally:
        os.ftruncate(fd, 0)
        os.close(fd)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of the file that has this name now, or nothing."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        if _is_named(fd, path):
            return fd
        os.close(fd)  # a cleaner of old files took the name away in between


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
