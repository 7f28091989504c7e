"""The commands of every job, as rows: stored whole, read back whole."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from torchloom.rules.command import Ack, Command, Entry, Kind, Status
from torchloom.weaver.journal import Journal
from torchloom.weaver.store import StateStore, rows


class Ledger:
    """What was asked and what became of it."""

    def __init__(
        self, state: StateStore, journal: Journal, now: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._journal = journal
        self._now = now

    def entries(self, job: str) -> list[Entry]:
        """Return the commands of a job as the rules know them, in order."""
        found = sorted(self._state.find(rows.Command, job=job), key=lambda row: row.number)
        acks: dict[str, list[rows.CommandAck]] = {}
        for ack in self._state.find(rows.CommandAck, command=[row.id for row in found]):
            acks.setdefault(ack.command, []).append(ack)
        return [_entry(row, acks.get(row.id, [])) for row in found]

    def store(self, job: str, entries: Iterable[Entry]) -> None:
        """Store commands, what ranks said to them, and that each is where it is now."""
        with self._state.together():
            for entry in entries:
                self._store(job, entry)

    def audit(self, job: str) -> list[rows.Command]:
        """Return the audit log of a job."""
        return sorted(self._state.find(rows.Command, job=job), key=lambda row: row.number)

    def job_of(self, command: str) -> str | None:
        """Return whose command this is; nothing when there is none of this id."""
        found = self._state.one(rows.Command, id=command)
        return found.job if found else None

    def acks(self, commands: Iterable[str]) -> list[rows.CommandAck]:
        """Return what ranks said to these commands."""
        return self._state.find(rows.CommandAck, command=list(commands))

    def desired(self, job: str) -> dict[str, Any]:
        """Return the values that a job's knobs are to have."""
        return {row.name: row.value for row in self._state.find(rows.Desired, job=job)}

    def _store(self, job: str, entry: Entry) -> None:
        known = self._state.one(rows.Command, id=entry.id)
        row = _row(job, entry, known.asked_at if known else self._now(), self._now())
        self._state.put(row, *_acks(entry, self._now()))
        if known is None or known.state != row.state:
            facts = {"command": row.id, "kind": row.kind, "payload": row.payload}
            facts |= {"before": row.before, "after": row.after}
            self._journal.note(
                f"command_{row.state}",
                job,
                step=row.effective,
                author=row.author,
                reason=row.outcome or row.reason,
                facts=facts,
            )
        if entry.status in (Status.COMMITTED, Status.APPLIED) and entry.command.kind is Kind.KNOB:
            self._state.put(*_desired(job, entry))


def _desired(job: str, entry: Entry) -> list[rows.Row]:
    return [
        rows.Desired(job, name, wish["value"], wish["hold"], entry.id, entry.step)
        for name, wish in entry.command.payload.items()
    ]


def _row(job: str, entry: Entry, asked_at: float, now: float) -> rows.Command:
    command = entry.command
    first = entry.acks[min(entry.acks)] if entry.acks else None
    return rows.Command(
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


def _acks(entry: Entry, now: float) -> list[rows.CommandAck]:
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


def _entry(row: rows.Command, acks: Iterable[rows.CommandAck]) -> Entry:
    said = {
        ack.rank: Ack(ack.step or 0, ack.before, ack.after)
        for ack in acks
        if ack.generation == row.generation
    }
    command = Command(row.id, Kind(row.kind), row.payload, row.author, row.reason, row.at)
    status = Status(row.state)
    return Entry(
        command, row.number, status, row.offer, row.effective, row.outcome, said, row.generation
    )
