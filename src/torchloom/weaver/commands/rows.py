"""The commands of every job, as rows: stored whole, read back whole.

Only the weaver writes them, so it caches what it has read or written: an API request and a rank's
report do not wait for queries.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torchloom.rules.control.command import (
    Ack,
    Command,
    CommandEntry,
    CommandKind,
    Status,
    schedule,
)
from torchloom.weaver.journal import Journal
from torchloom.weaver.store import StateStore, rows

_MOST_CACHED = 256  # jobs


@dataclass(frozen=True, slots=True)
class JobCommands:
    """The commands of one job as the database has them, in order, and the acks of ranks."""

    commands: dict[str, rows.CommandRow] = field(default_factory=dict)
    acks: dict[str, dict[tuple[int, int], rows.CommandAck]] = field(default_factory=dict)

    def take(self, row: rows.StoredRow) -> None:
        """Take in a row."""
        if isinstance(row, rows.CommandRow):
            self.commands[row.id] = row
        elif isinstance(row, rows.CommandAck):
            self.acks.setdefault(row.command, {})[row.generation, row.rank] = row

    def acks_of(self, command: str) -> list[rows.CommandAck]:
        """Return the acks of a command."""
        return [ack for _, ack in sorted(self.acks.get(command, {}).items())]


class CommandRows:
    """The rows of commands: what was requested, and how it ended."""

    def __init__(
        self, state: StateStore, journal: Journal, now: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._journal = journal
        self._now = now
        self._books: OrderedDict[str, JobCommands] = OrderedDict()
        self._waiting: list[tuple[str, CommandEntry]] = []

    def store(self, job: str, entries: Iterable[CommandEntry]) -> None:
        """Store commands, the acks of ranks, and the status of each as an event."""
        self.keep(job, entries)
        self.settle()

    def keep(self, job: str, entries: Iterable[CommandEntry]) -> None:
        """Store the same together with what is stored next, or when it is read."""
        self._waiting += ((job, entry) for entry in entries)

    def settle(self) -> None:
        """Store what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            with self._state.together():
                for job, entry in waiting:
                    self._store(job, entry)
        except BaseException:
            self._books.clear()  # they hold what is not stored
            raise
        self._journal.wake()

    def entries(self, job: str) -> list[CommandEntry]:
        """Return the commands of a job as the rules know them, in order."""
        self.settle()
        book = self._book(job)
        return [entry_of(row, book.acks_of(row.id)) for row in book.commands.values()]

    def audit(self, job: str) -> list[rows.CommandRow]:
        """Return the audit log of a job."""
        self.settle()
        return list(self._book(job).commands.values())

    def job_of(self, command: str) -> str | None:
        """Return the job of a command; None when there is none of this id."""
        self.settle()
        for job, book in self._books.items():
            if command in book.commands:
                return job
        found = self._state.one(rows.CommandRow, id=command)
        return found.job if found else None

    def acks(self, commands: Iterable[str]) -> list[rows.CommandAck]:
        """Return the acks of these commands."""
        jobs = [(command, self.job_of(command)) for command in commands]
        return [ack for command, job in jobs if job for ack in self._book(job).acks_of(command)]

    def schedule(self, job: str) -> tuple[CommandEntry, ...]:
        """Return the changes of a job's knobs that a joining rank needs."""
        return schedule(self.entries(job))

    def _book(self, job: str) -> JobCommands:
        if job not in self._books:
            self._books[job] = self._read(job)
            while len(self._books) > _MOST_CACHED:
                self._books.popitem(last=False)
        self._books.move_to_end(job)
        return self._books[job]

    def _read(self, job: str) -> JobCommands:
        book = JobCommands()
        for row in sorted(self._state.find(rows.CommandRow, job=job), key=lambda row: row.number):
            book.take(row)
        for ack in self._state.find(rows.CommandAck, command=list(book.commands)):
            book.take(ack)
        return book

    def _store(self, job: str, entry: CommandEntry) -> None:
        """Store what is new about a command."""
        book, now = self._book(job), self._now()
        known, acks = book.commands.get(entry.id), book.acks.get(entry.id, {})
        row = _row(job, entry, known.asked_at if known else now, now)
        if known is None or known.state != row.state:
            self._note(row)
        new = [ack for ack in _acks(entry, now) if (ack.generation, ack.rank) not in acks]
        for each in (row, *new):
            self._state.put(each)
            book.take(each)

    def _note(self, row: rows.CommandRow) -> None:
        facts = {"command": row.id, "kind": row.kind, "payload": row.payload}
        facts |= {"before": row.before, "after": row.after}
        self._journal.note(
            f"command_{row.state}",
            row.job,
            step=row.effective,
            author=row.author,
            reason=row.outcome or row.reason,
            facts=facts,
        )


def _row(job: str, entry: CommandEntry, asked_at: float, now: float) -> rows.CommandRow:
    command = entry.command
    first = entry.acks[min(entry.acks)] if entry.acks else None
    return rows.CommandRow(
        id=entry.id,
        number=entry.number,
        job=job,
        kind=str(command.kind),
        payload=dict(command.payload),
        at=command.at_step,
        author=command.author,
        reason=command.reason,
        asked_at=asked_at,
        state=str(entry.status),
        generation=entry.generation,
        offer=entry.offer,
        effective=entry.step,
        before=first.before if first else None,
        after=first.after if first else None,
        outcome=entry.why,
        ended_at=now if entry.status.is_final else None,
    )


def _acks(entry: CommandEntry, now: float) -> list[rows.CommandAck]:
    return [
        rows.CommandAck(
            command=entry.id,
            generation=entry.generation,
            rank=rank,
            state="applied",
            step=ack.step,
            before=ack.before,
            after=ack.after,
            at=now,
        )
        for rank, ack in entry.acks.items()
    ]


def entry_of(row: rows.CommandRow, acks: Iterable[rows.CommandAck]) -> CommandEntry:
    """Return a command and its acks, as the rules use them."""
    by_rank = {
        ack.rank: Ack(ack.step or 0, ack.before, ack.after)
        for ack in acks
        if ack.generation == row.generation
    }
    command = Command(row.id, CommandKind(row.kind), row.payload, row.author, row.reason, row.at)
    status = Status(row.state)
    return CommandEntry(
        command, row.number, status, row.offer, row.effective, row.outcome, by_rank, row.generation
    )
