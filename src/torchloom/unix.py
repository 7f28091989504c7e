"""Folders and unix sockets that are this user's alone, and whole messages over them.

Shared by rooms that never import each other: clients of a plane and the plane. A command line
imports it before it does anything, so the heavier modules are imported where they are used.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

HEADER = struct.Struct("!IH")  # bytes of JSON, descriptors that belong to them
LONGEST = 1 << 26  # bytes of a message; a peer that announces more is refused
_LONGEST_NAME = 100  # bytes of a path that the kernel takes, on every system
_PEER = struct.Struct("3i")  # pid, uid, gid


def make_private(folder: Path) -> None:
    """Make a folder that is ours and closed to others, or check it; OSError if it cannot be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def open_private(folder: Path) -> int:
    """Return a descriptor of a folder that is ours and closed to others; OSError if it is not.

    Names below it are safe to use: no other user can have put anything there.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(fd)
    if found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return fd
    os.close(fd)
    whose = f"belongs to user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}"
    raise PermissionError(errno.EPERM, f"it {whose}")


def is_private(folder: Path) -> bool:
    """Tell whether a folder is there, ours, closed to others, and no link."""
    try:
        os.close(open_private(folder))
    except OSError:
        return False
    return True


@contextmanager
def acting(uid: int) -> Iterator[None]:
    """Have `open_file` in this thread take plain files of this user alone."""
    global _acting
    if _acting is None:
        import threading

        _acting = threading.local()
    _acting.uid = uid
    try:
        yield
    finally:
        _acting.uid = None


def is_acting() -> bool:
    """Tell whether this thread has taken the rights of an account."""
    return getattr(_acting, "uid", None) is not None


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to be read. Within `rights` it must be a plain file of that account, no link.

    So neither a FIFO, which would hold the reader up, nor a name for another's file is read.
    """
    uid: int | None = getattr(_acting, "uid", None)
    if uid is None:
        return open(path, "rb")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == uid:
        return open(fd, "rb")
    os.close(fd)
    raise PermissionError(errno.EPERM, "it is not a plain file of its account", os.fspath(path))


_acting: Any = None  # made by the first thread that acts for an account


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield a name for a socket's path that is short enough, however deep it lies."""
    if len(os.fsencode(path)) <= _LONGEST_NAME or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def same_user(channel: "socket.socket") -> bool:
    """Tell whether the other end of a unix socket belongs to this user."""
    import socket

    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder the socket lies in is closed to others
    peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(peer)[1]
    return uid == os.getuid()


def peer_pid(channel: "socket.socket") -> int:
    """Return the process that listens at the other end of a unix socket; on Linux only."""
    import socket

    peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid: int = _PEER.unpack(peer)[0]
    return pid


def received(channel: "socket.socket", most: int) -> bytes | None:
    """Return what has come, without waiting; nothing yet is None, and b"" the end."""
    try:
        return channel.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def send_message(channel: "socket.socket", message: Mapping[str, Any]) -> None:
    """Send one message; block until the kernel has taken it."""
    import json

    text = json.dumps(message).encode()
    channel.sendall(HEADER.pack(len(text), 0) + text)


def receive_message(channel: "socket.socket") -> dict[str, Any] | None:
    """Wait for one message, and leave what follows it unread; None when the other end closed."""
    import json

    head = _exactly(channel, HEADER.size)
    if not head:
        return None
    length, _ = HEADER.unpack(head)
    if length > LONGEST:
        raise ConnectionError("the other end uses another protocol")
    try:
        message = json.loads(_exactly(channel, length) or b"null")
    except RecursionError:
        raise ConnectionError("the other end uses another protocol") from None
    if not isinstance(message, dict):
        raise ConnectionError("it closed the connection in the middle of a message")
    return message


def _exactly(channel: "socket.socket", length: int) -> bytes:
    """Return so many bytes; none when there are none at all."""
    data = b""
    while len(data) < length:
        more = channel.recv(min(length - len(data), 1 << 20))
        if not more and data:
            raise ConnectionError("it closed the connection in the middle of a message")
        if not more:
            return b""
        data += more
    return data
