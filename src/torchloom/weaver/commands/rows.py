"""The commands and knobs of every job: commands are rows, stored whole and read back whole.

Only the weaver writes them, so it caches what it has read or written: an API request and a rank's
report do not wait for queries.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom.errors import NotFound, UserError, shorten
from torchloom.rules.control.command import (
    Ack,
    BadKnobValue,
    Command,
    CommandEntry,
    CommandKind,
    NotAKnob,
    Status,
    schedule,
)
from torchloom.weaver.events import Journal
from torchloom.weaver.store import StateStore, rows
from torchloom.weaver.store.rows import JobRow, PointRow, RankProcessRow

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


_MEASURED = "loom/"  # before the names of what ranks measure by themselves
_NAMES = {"float": "a finite number", "int": "a whole number", "bool": "true or false"}


class NoKnobs(UserError):
    """The job has nothing that could be changed, or not yet."""

    code = "no_knobs"


def knobs_of(ranks: Iterable[RankProcessRow]) -> dict[str, dict[str, Any]]:
    """Return the knobs of a job, each with the ranks that have it, and with the values of these
    where they differ. Values of a config that no step has read are none."""
    found: dict[str, dict[str, Any]] = {}
    for rank in ranks:
        for knob in rank.knobs:
            if not knob.get("is_used", True):
                continue
            shown = {name: knob[name] for name in ("name", "value", "type", "low", "high")}
            known = found.setdefault(knob["name"], {**shown, "ranks": [], "values": []})
            known["ranks"].append(rank.rank)
            known["values"].append(knob["value"])
    for knob in found.values():
        _agree(knob)
    return dict(sorted(found.items()))


def _agree(knob: dict[str, Any]) -> None:
    """Leave the values of single ranks out where all of them are the same."""
    if all(value == knob["value"] for value in knob["values"]):
        del knob["values"]


class InForce:
    """The values of knobs now: what ranks measured in their last steps, and what changes made.

    Ranks measure those of their optimizers once a second, whatever a schedule does to them; a
    change that acted later than that is newer. `step` is how far the job is by its ranks' pages.
    """

    def __init__(
        self,
        changes: Iterable[CommandEntry],
        measured: Iterable[PointRow],
        generation: int,
        step: int | None,
    ) -> None:
        self._changed: dict[str, tuple[int, Any]] = {}  # step and value of the last change
        for entry in changes:
            is_done = entry.status is Status.APPLIED and entry.generation == generation
            if is_done or (step is not None and (entry.step or 0) <= step):
                for name, change in entry.command.payload.items():
                    self._changed[name] = entry.step or 0, change["value"]
        self._measured: dict[str, dict[int, PointRow]] = {}
        for point in measured:
            if point.name.startswith(_MEASURED) and point.generation == generation:
                name = point.name.removeprefix(_MEASURED)
                self._measured.setdefault(name, {})[point.rank] = point

    def of(self, knob: dict[str, Any]) -> dict[str, Any]:
        """Return a knob with its values now, or as it was registered where there is no news."""
        at, value = self._changed.get(knob["name"], (-1, None))
        found = self._last(knob, at)
        if found is None:
            return knob if at < 0 else {**_without_values(knob), "value": value}
        shown = {**knob, "value": found[0], "values": found}
        _agree(shown)
        return shown

    def _last(self, knob: dict[str, Any], since: int) -> list[Any] | None:
        """Return what each rank measured last, unless one of them did so before a change."""
        parts = [knob["name"]]
        if isinstance(knob["value"], list):
            parts = [f"{knob['name']}.{part}" for part in range(len(knob["value"]))]
        rows = [
            [self._measured.get(name, {}).get(rank) for name in parts] for rank in knob["ranks"]
        ]
        points = [
            point for row in rows for point in row if point is not None and point.step > since
        ]
        if not points or len(points) < len(parts) * len(rows):
            return None
        values = [[point.value for point in row if point is not None] for row in rows]
        return values if isinstance(knob["value"], list) else [row[0] for row in values]


def _without_values(knob: Mapping[str, Any]) -> dict[str, Any]:
    return {key: knob[key] for key in knob if key != "values"}


def checked(job: JobRow, ranks: list[RankProcessRow], values: dict[str, Any]) -> dict[str, Any]:
    """Return values as the job's knobs take them; raises NoKnobs, NotAKnob or BadKnobValue."""
    known = knobs_of(ranks)
    if not values:
        raise BadKnobValue("nothing to set; write NAME=VALUE")
    if not known:
        raise NoKnobs(f"job {job.id} has no knobs: no rank has registered one")
    for name in values:
        if _is_unread(name, ranks):
            raise NotAKnob(name)
        if name not in known:
            remedy = f"known: {', '.join(known)}"
            raise NotFound("knob", name, known, remedy)
    return {name: _value(known[name], value) for name, value in values.items()}


def _is_unread(name: str, ranks: Iterable[RankProcessRow]) -> bool:
    """Return whether a rank has this in its config alone, though it is one of those that train."""
    having = [(rank.role, knob) for rank in ranks for knob in rank.knobs if knob["name"] == name]
    used = {role for role, knob in having if knob.get("is_used", True)}
    return any(role in used or not used for role, knob in having if not knob.get("is_used", True))


def _value(knob: dict[str, Any], value: Any) -> Any:
    name, kind = knob["name"], knob["type"]
    value = _typed(name, kind, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = knob["low"], knob["high"]
        if low is not None and value < low:
            raise BadKnobValue(f"{name} must be at least {low:g}, not {value:g}")
        if high is not None and value > high:
            raise BadKnobValue(f"{name} must be at most {high:g}, not {value:g}")
    return value


def _typed(name: str, kind: str, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "float" and is_number and math.isfinite(value):
        return float(value)
    if kind == "int" and is_number and math.isfinite(value) and value == int(value):
        return int(value)
    if (kind == "bool" and isinstance(value, bool)) or kind == "json":
        return value
    if kind == "str" and isinstance(value, str):
        return value
    raise BadKnobValue(f"{name} takes {_NAMES.get(kind, 'a string')}, not {shorten(repr(value))}")
