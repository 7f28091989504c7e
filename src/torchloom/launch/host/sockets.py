"""Unix sockets that only this user can call, in a folder that only this user can enter."""

import errno
import socket
from collections.abc import Mapping
from pathlib import Path

from torchloom import settings
from torchloom.errors import Failure
from torchloom.settings import LOOPBACK
from torchloom.unix import make_private, reachable, same_user

UPLINK = "agent.sock"  # among the plane's sockets: where it takes the messages of a node's ranks
_BACKLOG = 64


def free_port() -> int:
    """Return a port that is free at this instant."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def settle(wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the ports of a replica: 0 becomes any free one, others stay."""
    return {name: port or free_port() for name, port in wanted.items()}


class RuntimeFolderUnsafe(Failure):
    """Another user owns the folder for our sockets, or it cannot be made."""

    code = "runtime_folder_unsafe"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot keep sockets in {path}: {why}; set XDG_RUNTIME_DIR to a local folder of yours"
        )


def socket_path(name: str) -> Path:
    """Return where a socket of this name lies; its folder exists and is ours alone."""
    folder = settings.runtime_dir()
    try:
        make_private(folder)
    except OSError as error:
        raise RuntimeFolderUnsafe(folder, error.strerror or str(error)) from error
    return folder / name


def launch_address(app_id: str) -> Path:
    """Return where a run's launch process takes calls from its own host."""
    return socket_path(f"{app_id}.launch")


def listen(path: Path) -> socket.socket:
    """Return a socket that takes calls at a path; one that was there before is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with reachable(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def connect(path: Path) -> socket.socket:
    """Call the process of ours that listens at a path; OSError when there is none."""
    channel = socket.socket(socket.AF_UNIX)
    try:
        with reachable(path) as address:
            channel.connect(address)
        if not same_user(channel):
            raise PermissionError(errno.EPERM, f"another user listens at {path}")
    except OSError:
        channel.close()
        raise
    return channel
