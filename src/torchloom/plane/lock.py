"""One plane a user, state folder and host: the process that holds the locks.

The kernel releases the lock with the process, so a plane that was killed, or ran before the last
boot, does not block the next one.
"""

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from torchloom import settings
from torchloom.unix import same_user

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)  # of a file system


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
def hold_home(path: Path, place: Path) -> Iterator[bool]:
    """Hold the lock of a state folder on this host, and write the folder of the sockets into it.

    Shells of one user may disagree about the folder of sockets, but two planes must not share one
    database. Yields false when another plane has it. The name stays when the plane has ended: the
    next one listens at the same place, where running jobs connect to it.
    """
    with contextlib.ExitStack() as stack:
        try:
            fd = _locked(path)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            fd = _opened(path) if stack.enter_context(hold_name(path)) else None
        if fd is None:
            yield False
            return
        stack.callback(os.close, fd)
        _name(fd, place)
        yield True


def _name(fd: int, place: Path) -> None:
    """Write where the sockets are; a reader finds all of it, or what was there before."""
    words = (os.uname().nodename, settings.boot_id(), str(place), str(os.getpid()), "")
    text = os.fsencode("\n".join(words))
    os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


@contextlib.contextmanager
def hold_name(path: Path) -> Iterator[bool]:
    """Hold an abstract socket name, for file systems without locks; false if it is taken.

    A name that another user took means nothing for our planes.
    """
    import socket

    name = f"\0torchloom-{os.getuid()}-{zlib.crc32(os.fsencode(path)):08x}"
    with socket.socket(socket.AF_UNIX) as holder:
        try:
            holder.bind(name)
            holder.listen(1)
        except OSError:
            with socket.socket(socket.AF_UNIX) as caller:
                caller.settimeout(1.0)
                try:
                    caller.connect(name)
                except OSError:
                    yield False
                    return
                yield not same_user(caller)
                return
        yield True


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of the file that has this name now, or nothing."""
    while True:
        fd = _opened(path)
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
        os.close(fd)  # a cleaner of old files removed the name in between


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
