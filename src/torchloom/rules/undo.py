"""Decide which change of knobs is taken back, and to which values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.rules.command import Entry, Kind, Status

_OPEN = (Status.ACCEPTED, Status.OFFERED_AGAIN, Status.PREPARING, Status.COMMITTED)


@dataclass(frozen=True, slots=True)
class Undo:
    """Give these knobs the values they had before a change."""

    command: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoUndo:
    """There is nothing to take back, in words."""

    why: str


def undo(audit: Iterable[Entry], command: str = "") -> Undo | NoUndo:
    """Return how to take back a change; without a name the newest that is still in force."""
    changes = [entry for entry in audit if entry.command.kind is Kind.KNOB]
    if not command:
        return _newest(changes)
    named = next((entry for entry in changes if entry.id == command), None)
    return _named(changes, named) if named else NoUndo(f"no change of knobs has the id {command!r}")


def undone_by(entry: Entry) -> frozenset[str]:
    """Return which commands this one takes back, if any."""
    wishes = entry.command.payload.values()
    return frozenset(wish["undo"] for wish in wishes if isinstance(wish, dict) and "undo" in wish)


def _newest(changes: list[Entry]) -> Undo | NoUndo:
    undone = _undone(changes)
    candidates = [e for e in changes if e.id not in undone and not undone_by(e) and _counts(e)]
    if not candidates:
        return NoUndo("no change of knobs is in force")
    return _named(changes, candidates[-1])


def _named(changes: list[Entry], entry: Entry) -> Undo | NoUndo:
    if entry.status in _OPEN:
        step = "" if entry.step is None else f" before step {entry.step}"
        return NoUndo(f"change {entry.id} is yet to act{step}; undo it when it has")
    if entry.status is not Status.APPLIED or not entry.acks:
        return NoUndo(f"change {entry.id} came to nothing: {entry.why or entry.status}")
    if entry.id in _undone(changes):
        return NoUndo(f"change {entry.id} is undone already")
    if newer := _newer(changes, entry):
        names = ", ".join(sorted(newer.command.payload.keys() & entry.command.payload.keys()))
        return NoUndo(f"{names} was changed again by {newer.id}; undo that first, or set a value")
    values = _before(entry)
    if values is None:
        return NoUndo(f"nobody knows what was before change {entry.id}; set a value instead")
    return Undo(entry.id, values)


def _newer(changes: list[Entry], entry: Entry) -> Entry | None:
    """Return a later change of the same knobs that is in force."""
    undone, names = _undone(changes), entry.command.payload.keys()
    for other in reversed(changes):
        is_later = other.number > entry.number and _counts(other)
        settled = other.id in undone or (undone_by(other) and undone_by(other) <= undone)
        if is_later and not settled and names & other.command.payload.keys():
            return other
    return None


def _undone(changes: list[Entry]) -> frozenset[str]:
    """Return the changes that another has taken back, and that one is not taken back itself."""
    taken: set[str] = set()
    for entry in reversed(changes):
        if entry.id not in taken and _counts(entry):
            taken |= undone_by(entry)
    return frozenset(taken)


def _counts(entry: Entry) -> bool:
    return entry.status not in (Status.REFUSED, Status.ABORTED)


def _before(entry: Entry) -> dict[str, Any] | None:
    names = list(entry.command.payload)
    said = entry.acks[min(entry.acks)].before
    values = {names[0]: said} if len(names) == 1 else said
    if not isinstance(values, dict) or any(values.get(name) is None for name in names):
        return None
    return {name: values[name] for name in names}
