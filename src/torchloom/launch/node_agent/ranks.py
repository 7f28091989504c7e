"""Which ranks of this node are known: what each said of itself last, and how to reach it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchloom.bus.progress_page import PageView
from torchloom.messages.plane import NO_RANK, Head, Message, Progress, Register

Place = tuple[str, str, int]  # job, role, rank


class ProcessLine(Protocol):
    """The way to one process."""

    pid: int
    started: int

    def send(self, message: Message) -> None: ...


@dataclass(slots=True)
class RankEntry:
    """Who is a rank now: the life that registered last, even while its connection is lost."""

    register: Register
    line: ProcessLine | None
    process: tuple[int, int] = (0, 0)  # pid and start time as this agent sees them
    page: PageView | None = None

    def leave(self) -> None:
        if self.page is not None:
            self.page.close()
            self.page = None


class KnownRanks:
    """The seats of this node, and the launch processes that speak for whole jobs."""

    def __init__(self) -> None:
        self._seats: dict[Place, RankEntry] = {}
        self._launches: dict[tuple[str, str], RankEntry] = {}  # by job and incarnation
        self._generations: dict[str, int] = {}

    def register(self, register: Register, line: ProcessLine) -> bool:
        """Take in what a rank says of itself; false when a later life has its place.

        Saying the same again changes nothing.
        """
        head = register.head
        self.generation_seen(head)
        if head.rank == NO_RANK:
            self._launches[head.job, head.incarnation] = RankEntry(register, line)
            return True
        place = (head.job, head.role, head.rank)
        seat = self._seats.get(place)
        if seat is not None and _is_older(register, seat.register):
            return False
        if seat is None or seat.register.head.incarnation != head.incarnation:
            if seat is not None:
                seat.leave()
            seat = self._seats[place] = RankEntry(register, line)
        elif seat.register.page != register.page:
            seat.leave()
        seat.register, seat.line, seat.process = register, line, (line.pid, line.started)
        return True

    def generation_seen(self, head: Head) -> None:
        """Note how far a job's generations have come."""
        known = self._generations.get(head.job, 0)
        self._generations[head.job] = max(known, head.generation)

    def is_current(self, head: Head) -> bool:
        """Tell whether this life, in this generation, may act for its rank."""
        if head.generation < self._generations.get(head.job, 0):
            return False
        seat = self._seats.get((head.job, head.role, head.rank))
        return seat is None or seat.register.head.incarnation == head.incarnation

    def hung_up(self, line: ProcessLine) -> None:
        """Note that a connection is gone; whose it was may call again."""
        for seat in self._seats.values():
            if seat.line is line:
                seat.line = None
        launches = self._launches.items()
        self._launches = {key: seat for key, seat in launches if seat.line is not line}

    @property
    def are_there(self) -> bool:
        """Tell whether any rank may still say something."""
        return any(seat.line is not None for seat in self._seats.values())

    def line_to(self, head: Head) -> ProcessLine | None:
        """Return the way to a rank; with an incarnation, to that life of it alone."""
        seat = self.seat_of(head)
        return None if seat is None else seat.line

    def seat_of(self, head: Head) -> RankEntry | None:
        """Return who is this rank now; with an incarnation, if it is that life."""
        seat = self._seats.get((head.job, head.role, head.rank))
        if seat is None or head.incarnation not in ("", seat.register.head.incarnation):
            return None
        return seat

    def seats(self, lives: frozenset[str]) -> list[RankEntry]:
        """Return which of these lives are the present ones of ranks here."""
        found = self._seats.values()
        return [seat for seat in found if seat.register.head.incarnation in lives]

    def progress_of(self, seat: RankEntry) -> Progress | None:
        """Return how far the rank of a seat is now, if it has a page to read."""
        return _progress(seat, time.monotonic_ns())

    def launches(self, job: str) -> list[ProcessLine]:
        """Return the ways to the processes that start and end a job's ranks here."""
        here = (seat.line for (its, _), seat in self._launches.items() if its == job)
        return [line for line in here if line is not None]

    def registers(self) -> tuple[Register, ...]:
        """Return what each rank said of itself last, and each launch process that is there."""
        everybody = (*self._seats.values(), *self._launches.values())
        return tuple(seat.register for seat in everybody)

    def progress(self, now_ns: int | None = None) -> tuple[Progress, ...]:
        """Return how far each rank is that has a page to read."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        found = (_progress(seat, now) for seat in self._seats.values())
        return tuple(one for one in found if one is not None)

    def bury(self, is_alive: Callable[[int, int], bool]) -> list[Register]:
        """Forget the ranks whose connection and process are both gone, and return them."""
        gone = [
            place
            for place, seat in self._seats.items()
            if seat.line is None and not is_alive(*seat.process)
        ]
        buried = [self._seats.pop(place) for place in gone]
        for seat in buried:
            seat.leave()
        jobs = {place[0] for place in (*self._seats, *self._launches)}
        self._generations = {job: g for job, g in self._generations.items() if job in jobs}
        return [seat.register for seat in buried]


def _is_older(register: Register, known: Register) -> bool:
    """Tell whether a register is of a life before the known one."""
    if register.head.incarnation == known.head.incarnation:
        return register.head.generation < known.head.generation
    return (register.head.generation, register.started) < (known.head.generation, known.started)


def _progress(seat: RankEntry, now_ns: int) -> Progress | None:
    if seat.page is None and seat.register.page:
        seat.page = PageView.open(Path(seat.register.page))
    reading = None if seat.page is None else seat.page.read()
    if reading is None:
        return None
    silent, lasted = reading.silent_for(now_ns), reading.lasted_ns / 1e9
    return Progress(seat.register.head, reading.step, reading.phase, silent, lasted)
