"""The unix socket on which ranks and launch processes call their node's agent."""

import asyncio
import contextlib
import os
import re
import socket
import struct
import weakref
from collections import Counter
from pathlib import Path
from typing import Protocol, cast

from torchloom.bus.codec import Frames, frame
from torchloom.launch.host import sockets
from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE
from torchloom.messages.plane import Head, Message
from torchloom.unix import make_private

STRANGER = re.compile(r"[A-Za-z0-9_.-]{1,64}-[0-9a-f]{12}")  # ids of launches end otherwise
_PEER = struct.Struct("3i")  # pid, uid, gid
_FURTHEST = 64  # ancestors that are looked at
_VARIABLES = tuple(f"{name}=".encode() for name in (JOB_VARIABLE, AGENT_VARIABLE))
_MOST_UNREAD = 4 << 20  # bytes that a process may leave unread before more is dropped


def peer_of(channel: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process that called; where the kernel cannot say, 0 and ours."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.getuid()  # the folder the socket lies in is closed to others
    pid, uid, _ = _PEER.unpack(
        channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    )
    return pid, uid


def may_speak_for(job: str, pid: int, proc: Path = Path("/proc")) -> bool:
    """Tell whether a process belongs to a job: its environment says so, or its parent's.

    The nearest one that names a job decides. A process without a launch is a job of its own,
    or belongs to one that no launch can have named.
    """
    if not proc.is_dir():
        return True  # such systems show no environments
    process = pid
    for _ in range(_FURTHEST):
        named = _jobs_named(proc / str(process))
        if named:
            return job in named
        process = _parent(proc / str(process))
        if process <= 0:
            break
    return job == f"local-{pid}" or STRANGER.fullmatch(job) is not None


def start_time(pid: int, proc: Path = Path("/proc")) -> int:
    """Return when a process started, in the kernel's ticks; 0 for one that is gone."""
    fields = _stat(proc / str(pid))
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def _jobs_named(process: Path) -> set[str]:
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return set()
    named = (entry.partition(b"=")[2] for entry in entries if entry.startswith(_VARIABLES))
    return {os.fsdecode(value) for value in named if value}


def _parent(process: Path) -> int:
    fields = _stat(process)
    return int(fields[1]) if len(fields) > 1 else 0


def _stat(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


class MessageHandler(Protocol):
    """Who deals with what is said on a line."""

    def take(self, line: "RankConnection", data: bytes) -> None: ...
    def hung_up(self, line: "RankConnection") -> None: ...


class RankConnection(asyncio.Protocol):
    """One process' connection. It speaks for one life of one rank, which its first word names."""

    def __init__(self, desk: MessageHandler, dropped: Counter[str]) -> None:
        self.pid = 0
        self.started = 0  # when that process did, in the kernel's ticks
        self.head: Head | None = None
        self._desk = desk
        self._dropped = dropped
        self._frames = Frames(dropped)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.pid, user = peer_of(transport.get_extra_info("socket"))
        self.started = start_time(self.pid)
        if user != os.getuid():
            self._dropped["foreign_user"] += 1
            self.close()

    def data_received(self, data: bytes) -> None:
        for whole in self._frames.feed(data):
            if self._transport is None:
                return
            self._desk.take(self, whole)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._desk.hung_up(self)

    def send(self, message: Message) -> None:
        """Send a message without waiting; to one who does not read, not at all."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > _MOST_UNREAD:
            self._dropped["unread"] += 1
            return
        self._transport.write(frame(message))

    def close(self) -> None:
        """Hang up; what is sent after this is not read."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class RankServer:
    """Takes calls at a path that only this user can reach."""

    def __init__(self, path: Path, desk: MessageHandler, dropped: Counter[str]) -> None:
        self._path = path
        self._desk = desk
        self._dropped = dropped
        self._lines: weakref.WeakSet[RankConnection] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to take calls; a socket that a dead agent left is replaced."""
        make_private(self._path.parent)
        listener = sockets.listen(self._path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._line, sock=listener)

    async def close(self) -> None:
        """Take no more calls and hang up; callers try again until an agent answers."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._server is not None:
            self._server.close()
        for line in list(self._lines):
            line.close()

    def _line(self) -> RankConnection:
        line = RankConnection(self._desk, self._dropped)
        self._lines.add(line)
        return line
