"""The unix socket on which ranks and launch processes call their node agent, and who has called."""

import asyncio
import contextlib
import os
import re
import socket
import struct
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from torchloom.bus.codec import Frames, frame
from torchloom.bus.progress_page import PageView
from torchloom.launch.host import sockets
from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE
from torchloom.messages.plane import NO_RANK, Head, Message, Progress, Register
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
    """One process' connection. It speaks for the incarnation that its first message names."""

    def __init__(self, handler: MessageHandler, dropped: Counter[str]) -> None:
        self.pid = 0
        self.started = 0  # when that process did, in the kernel's ticks
        self.head: Head | None = None
        self._handler = handler
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
            self._handler.take(self, whole)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._handler.hung_up(self)

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

    def __init__(self, path: Path, handler: MessageHandler, dropped: Counter[str]) -> None:
        self._path = path
        self._handler = handler
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
        line = RankConnection(self._handler, self._dropped)
        self._lines.add(line)
        return line


Place = tuple[str, str, int]  # job, role, rank


class ProcessConnection(Protocol):
    """The connection to one process."""

    pid: int
    started: int

    def send(self, message: Message) -> None: ...


@dataclass(slots=True)
class RankEntry:
    """The incarnation of a rank that registered last, even while its connection is lost."""

    register: Register
    connection: ProcessConnection | None
    process: tuple[int, int] = (0, 0)  # pid and start time as this agent sees them
    page: PageView | None = None

    def connect(self, register: Register, connection: "ProcessConnection") -> None:
        """Take the last register of this incarnation, and the connection that it came by."""
        self.register, self.connection = register, connection
        self.process = (connection.pid, connection.started)

    def disconnect(self) -> None:
        self.connection = None

    def leave(self) -> None:
        """Close the page of an incarnation that is over."""
        if self.page is not None:
            self.page.close()
            self.page = None


class KnownRanks:
    """The ranks of this node, and the launch processes that act for whole jobs."""

    def __init__(self) -> None:
        self._entries: dict[Place, RankEntry] = {}
        self._launches: dict[tuple[str, str], RankEntry] = {}  # by job and incarnation
        self._generations: dict[str, int] = {}

    def register(self, register: Register, connection: ProcessConnection) -> bool:
        """Store the register of a rank; false when a later incarnation has registered.

        The same register again changes nothing.
        """
        head = register.head
        self.generation_seen(head)
        if head.rank == NO_RANK:
            self._launches[head.job, head.incarnation] = RankEntry(register, connection)
            return True
        place = (head.job, head.role, head.rank)
        entry = self._entries.get(place)
        if entry is not None and _is_older(register, entry.register):
            return False
        if entry is None or entry.register.head.incarnation != head.incarnation:
            if entry is not None:
                entry.leave()
            entry = self._entries[place] = RankEntry(register, connection)
        elif entry.register.page != register.page:
            entry.leave()
        entry.connect(register, connection)
        return True

    def generation_seen(self, head: Head) -> None:
        """Note how far a job's generations have come."""
        known = self._generations.get(head.job, 0)
        self._generations[head.job] = max(known, head.generation)

    def is_current(self, head: Head) -> bool:
        """Tell whether this incarnation, in this generation, may act for its rank."""
        if head.generation < self._generations.get(head.job, 0):
            return False
        entry = self._entries.get((head.job, head.role, head.rank))
        return entry is None or entry.register.head.incarnation == head.incarnation

    def hung_up(self, connection: ProcessConnection) -> None:
        """Note that a connection is closed; its process may connect again."""
        for entry in self._entries.values():
            if entry.connection is connection:
                entry.disconnect()
        launches = self._launches.items()
        self._launches = {
            key: entry for key, entry in launches if entry.connection is not connection
        }

    @property
    def are_there(self) -> bool:
        """Tell whether any rank is connected."""
        return any(entry.connection is not None for entry in self._entries.values())

    def connection_to(self, head: Head) -> ProcessConnection | None:
        """Return the connection of a rank; with an incarnation, of that one alone."""
        entry = self.entry_of(head)
        return None if entry is None else entry.connection

    def entry_of(self, head: Head) -> RankEntry | None:
        """Return the entry of a rank; with an incarnation, only if it is that one."""
        entry = self._entries.get((head.job, head.role, head.rank))
        if entry is None or head.incarnation not in ("", entry.register.head.incarnation):
            return None
        return entry

    def entries_of(self, lives: frozenset[str]) -> list[RankEntry]:
        """Return the entries of ranks here that are one of these incarnations."""
        found = self._entries.values()
        return [entry for entry in found if entry.register.head.incarnation in lives]

    def progress_of(self, entry: RankEntry) -> Progress | None:
        """Return how far the rank of an entry is now, if it has a page to read."""
        return _progress(entry, time.monotonic_ns())

    def launches(self, job: str) -> list[ProcessConnection]:
        """Return the connections of the processes that start and end a job's ranks here."""
        here = (entry.connection for (its, _), entry in self._launches.items() if its == job)
        return [connection for connection in here if connection is not None]

    def registers(self) -> tuple[Register, ...]:
        """Return the last register of each rank, and of each launch process that is there."""
        entries = (*self._entries.values(), *self._launches.values())
        return tuple(entry.register for entry in entries)

    def progress(self, now_ns: int | None = None) -> tuple[Progress, ...]:
        """Return how far each rank is that has a page to read."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        found = (_progress(entry, now) for entry in self._entries.values())
        return tuple(one for one in found if one is not None)

    def bury(self, is_alive: Callable[[int, int], bool]) -> list[Register]:
        """Forget the ranks whose connection and process are both gone, and return them."""
        gone = [
            place
            for place, entry in self._entries.items()
            if entry.connection is None and not is_alive(*entry.process)
        ]
        buried = [self._entries.pop(place) for place in gone]
        for entry in buried:
            entry.leave()
        jobs = {place[0] for place in (*self._entries, *self._launches)}
        self._generations = {job: g for job, g in self._generations.items() if job in jobs}
        return [entry.register for entry in buried]


def _is_older(register: Register, known: Register) -> bool:
    """Tell whether a register is of an incarnation before the known one."""
    if register.head.incarnation == known.head.incarnation:
        return register.head.generation < known.head.generation
    return (register.head.generation, register.started) < (known.head.generation, known.started)


def _progress(entry: RankEntry, now_ns: int) -> Progress | None:
    if entry.page is None and entry.register.page:
        entry.page = PageView.open(Path(entry.register.page))
    reading = None if entry.page is None else entry.page.read()
    if reading is None:
        return None
    silent, lasted = reading.silent_for(now_ns), reading.lasted_ns / 1e9
    return Progress(entry.register.head, reading.step, reading.phase, silent, lasted)
