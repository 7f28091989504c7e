"""Which ranks of this node are known: the last register of each, and its connection."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchloom.bus.progress_page import PageView
from torchloom.messages.plane import NO_RANK, Head, Message, Progress, Register

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
