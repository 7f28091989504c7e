"""Decide which committed checkpoints of a job may go: those that no wish keeps, never the newest.

Nothing goes unless the job said how many to keep: what a machine deletes by itself must have been
asked for.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint, as far as this is about it."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a job keeps: the last ones, every one whose step is a multiple, the best by a metric.

    Without `last` everything is kept.
    """

    last: int | None = None
    every: int | None = None
    best: str = ""
    mode: Literal["min", "max"] = "min"


def wishes_of(facts: Mapping[str, Any]) -> Wishes:
    """Return what a rank said of its job's wishes; what cannot be meant keeps more, not less."""
    mode = facts.get("mode")
    best = facts.get("best")
    return Wishes(
        _count(facts.get("keep_last")),
        _count(facts.get("keep_every")),
        best if isinstance(best, str) else "",
        "max" if mode == "max" else "min",
    )


def excess(
    saved: Iterable[Saved], wishes: Wishes, held: Collection[int] = frozenset()
) -> tuple[int, ...]:
    """Return the steps that may go, oldest first; `held` are those that somebody needs."""
    by_step = {each.step: each for each in saved}
    steps = sorted(by_step)
    if wishes.last is None or not steps:
        return ()
    kept = {steps[-1], *steps[max(0, len(steps) - wishes.last) :], *held}
    if wishes.every is not None:
        kept |= {step for step in steps if step % wishes.every == 0}
    kept |= _best(by_step.values(), wishes)
    return tuple(step for step in steps if step not in kept)


def sound(steps: Iterable[int], bad: int | None, tainted: Collection[int]) -> frozenset[int]:
    """Return what stays as the way back while a loss is not finite: the newest from before it.

    `bad` is the first step whose loss was not finite. What was saved before that very step may
    hold what made it so, then the one before stays, too. `tainted` was saved with such a loss.
    """
    if bad is None and not tainted:
        return frozenset()
    fine = sorted(step for step in steps if step not in tainted and (bad is None or step <= bad))
    return frozenset(fine[-2:] if fine and fine[-1] == bad else fine[-1:])


def _best(saved: Iterable[Saved], wishes: Wishes) -> set[int]:
    """Return the step of the best one, of several the newest; what has no number is not best."""
    if not wishes.best:
        return set()
    sign = 1.0 if wishes.mode == "max" else -1.0
    scores = [(each.metrics.get(wishes.best), each.step) for each in saved]
    known = [
        (sign * value, step) for value, step in scores if value is not None and math.isfinite(value)
    ]
    return {max(known)[1]} if known else set()


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 1 else None
