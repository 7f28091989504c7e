"""The unix socket on which ranks and launch processes call their node's agent."""

import asyncio
import contextlib
import os
import weakref
from collections import Counter
from pathlib import Path
from typing import Protocol, cast

from torchloom.bus.codec import Frames, frame
from torchloom.bus.messages import Head, Message
from torchloom.launch import sockets
from torchloom.launch.relay import peers
from torchloom.unix import make_private

_MOST_UNREAD = 4 << 20  # bytes that a process may leave unread before more is let go


class Desk(Protocol):
    """Who deals with what is said on a line."""

    def take(self, line: "Line", data: bytes) -> None: ...
    def hung_up(self, line: "Line") -> None: ...


class Line(asyncio.Protocol):
    """One process' connection. It speaks for one life of one rank, which its first word names."""

    def __init__(self, desk: Desk, dropped: Counter[str]) -> None:
        self.pid = 0
        self.started = 0  # when that process did, in the kernel's ticks
        self.head: Head | None = None
        self._desk = desk
        self._dropped = dropped
        self._frames = Frames(dropped)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.pid, user = peers.peer_of(transport.get_extra_info("socket"))
        self.started = peers.start_time(self.pid)
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
        """Hang up; what was said after this is not heard."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class Server:
    """Takes calls at a path that only this user can reach."""

    def __init__(self, path: Path, desk: Desk, dropped: Counter[str]) -> None:
        self._path = path
        self._desk = desk
        self._dropped = dropped
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to take calls; a socket that a dead agent left is replaced."""
        make_private(self._path.parent)
        listener = sockets.listen(self._path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._line, sock=listener)

    async def close(self) -> None:
        """Take no more calls and hang up; callers try again until somebody answers."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if self._server is not None:
            self._server.close()
        for line in list(self._lines):
            line.close()

    def _line(self) -> Line:
        line = Line(self._desk, self._dropped)
        self._lines.add(line)
        return line
