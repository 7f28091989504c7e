"""Decide whether a change is to be taken back because of what a metric does after it.

Numbers count as the lowest rank logs them; one that is not finite counts whichever rank has it.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

BEFORE = 10  # values before the change, whose mean is what relative limits are relative to

_FORM = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<sign>[<>]=?)\s*(?P<limit>[^\sx]+?)(?P<x>x?)\s*")
_NAN = re.compile(r"\s*(?P<name>\S+)\s+is\s+nan\s*", re.IGNORECASE)
_SIGNS = {
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """What must not happen: `loss>2.0`, `loss>1.5x` (of what it was), `loss is nan`."""

    metric: str
    sign: Literal["<", "<=", ">", ">=", ""] = ""  # none: only what is not finite
    limit: float = 0.0
    is_relative: bool = False

    def holds(self, value: float, base: float | None) -> bool:
        """Tell whether it happened; a number that is none counts as the worst."""
        if not math.isfinite(value):
            return True
        if not self.sign or (self.is_relative and base is None):
            return False
        limit = self.limit * base if self.is_relative and base is not None else self.limit
        return bool(_SIGNS[self.sign](value, limit))


def condition_of(text: str) -> Condition | None:
    """Read a condition; nothing when it is none."""
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
    """Take in what a rank logged in a step, `None` for other metrics; `is_first`: the lowest one.

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
