"""Unix sockets that only this user can call, in a folder that only this user can enter."""

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from torchloom import settings
from torchloom.errors import Failure

_BACKLOG = 64
_LONGEST = 100  # bytes of a path that the kernel takes, on every system
_PEER = struct.Struct("3i")  # pid, uid, gid


class RuntimeFolderUnsafe(Failure):
    """Somebody else owns the folder for our sockets, or it cannot be made."""

    code = "runtime_folder_unsafe"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot keep sockets in {path}: {why}; set XDG_RUNTIME_DIR to a local folder of yours"
        )


def socket_path(name: str) -> Path:
    """Return where a socket of this name lies; its folder exists and is ours alone."""
    folder = settings.runtime_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid():
            raise RuntimeFolderUnsafe(folder, f"it belongs to user {found.st_uid}")
        if not stat.S_ISDIR(found.st_mode):
            raise RuntimeFolderUnsafe(folder, "it is a link")
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise RuntimeFolderUnsafe(folder, error.strerror or str(error)) from error
    return folder / name


def launch_address(app_id: str) -> Path:
    """Return where a run's launch process takes calls from its own host."""
    return socket_path(f"{app_id}.launch")


def listen(path: Path) -> socket.socket:
    """Return a socket that takes calls at a path; whoever was there before is forgotten."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with reachable(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def connect(path: Path) -> socket.socket:
    """Call whoever listens at a path; OSError when nobody does."""
    channel = socket.socket(socket.AF_UNIX)
    try:
        with reachable(path) as address:
            channel.connect(address)
    except OSError:
        channel.close()
        raise
    return channel


def same_user(channel: socket.socket) -> bool:
    """Tell whether the other end of a unix socket belongs to this user."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder the socket lies in is closed to others
    peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(peer)[1]
    return uid == os.getuid()


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield a name for the path that is short enough, however deep it lies."""
    if len(os.fsencode(path)) <= _LONGEST or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
