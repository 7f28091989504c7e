"""One question over a unix socket of ours, and its answer or answers."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.client import frames
from torchloom.client.errors import PlaneLost, PlaneSilent, from_answer

if TYPE_CHECKING:
    import socket

VERSION = 1
_LONGEST = 100  # bytes of a path that the kernel takes, on every system


def call(path: Path, timeout: float | None) -> "socket.socket":
    """Call whoever of this user listens at a path; OSError when nobody does."""
    import socket

    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(timeout)
        with _reachable(path) as address:
            channel.connect(address)
        if not _same_user(channel):
            raise PermissionError(f"{path} is answered by another user")
    except OSError:
        channel.close()
        raise
    return channel


def question(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent to ask something."""
    return {**facts, "ask": name, "version": VERSION}


def answer(channel: "socket.socket", asked: Mapping[str, Any]) -> Any:
    """Ask over an open connection and return the answer; an error that is answered is raised."""
    try:
        frames.say(channel, asked)
        said = frames.hear(channel)
    except TimeoutError:
        raise PlaneSilent(f"the plane did not answer {asked['ask']!r} in time") from None
    except (OSError, ValueError) as error:
        raise PlaneLost(f"the plane did not answer {asked['ask']!r}: {error}") from error
    if said is None:
        raise PlaneLost(f"the plane went away while it was asked {asked['ask']!r}")
    return unpacked(said)


def unpacked(said: Mapping[str, Any]) -> Any:
    """Return what an answer holds, or raise what it complains of."""
    if "error" in said:
        raise from_answer(dict(said))
    return said.get("ok")


def _same_user(channel: "socket.socket") -> bool:
    import socket
    import struct

    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder the socket lies in is closed to others
    peer = struct.Struct("3i")  # pid, uid, gid
    uid: int = peer.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size))[1]
    return uid == os.getuid()


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield a name for the path that is short enough, however deep it lies."""
    if len(os.fsencode(path)) <= _LONGEST or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
