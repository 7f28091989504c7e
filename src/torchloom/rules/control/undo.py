"""Decide which change of knobs is taken back, and to which values."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchloom.rules.control.command import CommandEntry, CommandKind, Status

BEFORE = 10  # values before the change, whose mean is what relative limits are relative to
_FORM = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<sign>[<>]=?)\s*(?P<limit>[^\sx]+?)(?P<x>x?)\s*")
_NAN = re.compile(r"\s*(?P<name>\S+)\s+is\s+nan\s*", re.IGNORECASE)
_SIGNS = {
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
}
_OPEN = (Status.ACCEPTED, Status.OFFERED_AGAIN, Status.PREPARING, Status.COMMITTED)


@dataclass(frozen=True, slots=True)
class Condition:
    """What must not happen: `loss>2.0`, `loss>1.5x` (of what it was), `loss is nan`."""

    metric: str
    sign: Literal["<", "<=", ">", ">=", ""] = ""  # none: only what is not finite
    limit: float = 0.0
    is_relative: bool = False

    def holds(self, value: float, base: float | None) -> bool:
        """Return whether it happened; a number that is none counts as the worst."""
        if not math.isfinite(value):
            return True
        if not self.sign or (self.is_relative and base is None):
            return False
        limit = self.limit * base if self.is_relative and base is not None else self.limit
        return bool(_SIGNS[self.sign](value, limit))


def condition_of(text: str) -> Condition | None:
    """Parse a condition; None when it is invalid."""
    if found := _NAN.fullmatch(text):
        return Condition(found["name"])
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    try:
        limit = float(found["limit"])
    except ValueError:
        return None
    if not math.isfinite(limit):
        return None
    return Condition(found["name"], found["sign"], limit, bool(found["x"]))  # type: ignore[arg-type]


Verdict = Literal["watching", "tripped", "kept"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard of one change, which acted before step `begin`, over `span` steps."""

    words: str
    condition: Condition
    begin: int
    span: int
    before: tuple[tuple[int, float], ...] = ()  # the last steps ahead of it, and their values
    base: float | None = None
    seen: int = 0  # values that were judged
    verdict: Verdict = "watching"
    why: str = ""

    @property
    def end(self) -> int:
        """Return the first step that is no longer watched."""
        return self.begin + self.span


def saw(guard: Guard, is_first: bool, step: int, value: float | None) -> Guard:
    """Handle what a rank logged in a step, `None` for other metrics; `is_first`: the lowest rank.

    A rank's numbers come in the order of its steps.
    """
    if guard.verdict != "watching":
        return guard
    if step < guard.begin:
        return _ahead(guard, step, value) if is_first and value is not None else guard
    guard = _with_base(guard)
    is_due = value is not None and (is_first or not math.isfinite(value))
    if is_due and step < guard.end:
        return _judge(guard, step, value)  # type: ignore[arg-type]
    if is_first and step >= guard.end:
        what = guard.condition.metric
        seen = f"{guard.seen} values of {what}" if guard.seen else f"no value of {what}"
        return replace(guard, verdict="kept", why=f"{seen} in {guard.span} steps")
    return guard


def _ahead(guard: Guard, step: int, value: float) -> Guard:
    if not math.isfinite(value):
        return guard
    return replace(guard, before=(*guard.before, (step, value))[-BEFORE:])


def _with_base(guard: Guard) -> Guard:
    values = [value for step, value in guard.before if step < guard.begin]
    if guard.base is not None or not values:
        return guard
    return replace(guard, base=sum(values) / len(values))


def _judge(guard: Guard, step: int, value: float) -> Guard:
    guard = replace(guard, seen=guard.seen + 1)
    if not guard.condition.holds(value, guard.base):
        return guard
    was = f", {guard.base:g} before" if guard.condition.is_relative and guard.base else ""
    why = f"{guard.condition.metric} was {value:g} in step {step}{was}"
    return replace(guard, verdict="tripped", why=why)


@dataclass(frozen=True, slots=True)
class Undo:
    """Give these knobs the values they had before a change."""

    command: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoUndo:
    """There is nothing to take back, and why."""

    why: str


def undo(audit: Iterable[CommandEntry], command: str = "") -> Undo | NoUndo:
    """Return how to take back a change; without a name the newest that is still in force."""
    changes = [entry for entry in audit if entry.command.kind is CommandKind.KNOB]
    if not command:
        return _newest(changes)
    named = next((entry for entry in changes if entry.id == command), None)
    return _named(changes, named) if named else NoUndo(f"no change of knobs has the id {command!r}")


def undone_by(entry: CommandEntry) -> frozenset[str]:
    """Return which commands this one takes back, if any."""
    changes = entry.command.payload.values()
    return frozenset(one["undo"] for one in changes if isinstance(one, dict) and "undo" in one)


def _newest(changes: list[CommandEntry]) -> Undo | NoUndo:
    undone = _undone(changes)
    candidates = [e for e in changes if e.id not in undone and not undone_by(e) and _counts(e)]
    if not candidates:
        return NoUndo("no change of knobs is in force")
    return _named(changes, candidates[-1])


def _named(changes: list[CommandEntry], entry: CommandEntry) -> Undo | NoUndo:
    if entry.status in _OPEN:
        step = "" if entry.step is None else f" before step {entry.step}"
        return NoUndo(f"change {entry.id} has not taken effect yet{step}; undo it afterwards")
    if entry.status is not Status.APPLIED or not entry.acks:
        return NoUndo(f"change {entry.id} had no effect: {entry.why or entry.status}")
    if entry.id in _undone(changes):
        return NoUndo(f"change {entry.id} is already undone")
    if newer := _newer(changes, entry):
        names = ", ".join(sorted(newer.command.payload.keys() & entry.command.payload.keys()))
        return NoUndo(f"{names} was changed again by {newer.id}; undo that first, or set a value")
    values = _before(entry)
    if values is None:
        return NoUndo(f"the value before change {entry.id} is unknown; set a value instead")
    return Undo(entry.id, values)


def _newer(changes: list[CommandEntry], entry: CommandEntry) -> CommandEntry | None:
    """Return a later change of the same knobs that is in force."""
    undone, names = _undone(changes), entry.command.payload.keys()
    for other in reversed(changes):
        is_later = other.number > entry.number and _counts(other)
        settled = other.id in undone or (undone_by(other) and undone_by(other) <= undone)
        if is_later and not settled and names & other.command.payload.keys():
            return other
    return None


def _undone(changes: list[CommandEntry]) -> frozenset[str]:
    """Return the changes that another has taken back, and that one is not taken back itself."""
    taken: set[str] = set()
    for entry in reversed(changes):
        if entry.id not in taken and _counts(entry):
            taken |= undone_by(entry)
    return frozenset(taken)


def _counts(entry: CommandEntry) -> bool:
    return entry.status not in (Status.REFUSED, Status.ABORTED)


def _before(entry: CommandEntry) -> dict[str, Any] | None:
    names = list(entry.command.payload)
    said = entry.acks[min(entry.acks)].before
    values = {names[0]: said} if len(names) == 1 else said
    if not isinstance(values, dict) or any(values.get(name) is None for name in names):
        return None
    return {name: values[name] for name in names}
