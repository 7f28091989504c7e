"""Decide since when a job's losses are not finite, where that began, and when it is over.

What is known is a plain mapping, as a job's facts have it: by name of the loss, the value, the step
and the rank that had it first, and the step at which each rank had it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

FACT = "not_finite"  # among a job's facts

Known: TypeAlias = Mapping[str, Mapping[str, Any]]
_SHOWN = {"nan": "NaN"}


@dataclass(frozen=True, slots=True)
class NonFiniteLoss:
    """A loss of one rank that is not finite: the step it was logged for, and that of training."""

    name: str
    value: str
    rank: int
    step: int
    at: int
    generation: int


def worse(known: Known, seen: NonFiniteLoss) -> dict[str, Any]:
    """Return what is known once a rank has reported that a loss is not finite any more."""
    entry = known.get(seen.name)
    is_same = entry is not None and entry["generation"] == seen.generation
    if entry is not None and is_same and entry["ranks"].get(str(seen.rank), seen.step) < seen.step:
        known = better(known, seen.name, seen.rank, seen.step, seen.generation)
        entry = known.get(seen.name)
    if entry is None:
        entry = {"value": seen.value, "step": seen.step, "rank": seen.rank, "at": seen.at}
        ranks: dict[str, int] = {}
    else:
        ranks = entry["ranks"] if is_same else {}
    if (seen.step, seen.rank) < (entry["step"], entry["rank"]):
        entry = {**entry, "value": seen.value, "step": seen.step, "rank": seen.rank}
    words = {"at": min(entry["at"], seen.at), "generation": seen.generation}
    ranks = {**ranks, str(seen.rank): seen.step}
    return {**known, seen.name: {**entry, **words, "ranks": ranks}}


def better(known: Known, name: str, rank: int, step: int, generation: int) -> dict[str, Any]:
    """Return what is known once a loss of a rank is finite, at a step.

    What ranks of an earlier generation had is over then, whichever ranks there are now.
    """
    entry, others = known[name], {key: one for key, one in known.items() if key != name}
    if generation > entry["generation"]:
        return others
    if entry["ranks"].get(str(rank), step) >= step:
        return dict(known)  # it came late, and is of before
    ranks = {key: one for key, one in entry["ranks"].items() if key != str(rank)}
    return {**others, name: {**entry, "ranks": ranks}} if ranks else others


def words(known: Known) -> str:
    """Return what is wrong, for people; empty when nothing is."""
    return "; ".join(
        f"{name} is {_SHOWN.get(one['value'], one['value'])} since step {one['step']}"
        f" (rank {one['rank']} first)"
        for name, one in known.items()
    )


def since(known: Known) -> int | None:
    """Return the first step of training in which a loss was not finite."""
    return min((one["at"] for one in known.values()), default=None)
