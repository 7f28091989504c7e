"""Which knobs a job has, by what its ranks registered, and which values they take."""

import math
from collections.abc import Iterable
from typing import Any

from torchloom.errors import NotFound, UserError, shorten
from torchloom.rules.command import Entry, Status
from torchloom.weaver.store.rows import Job, Rank

_NAMES = {"float": "a finite number", "int": "a whole number", "bool": "true or false"}


class BadValue(UserError):
    """A knob does not take this value."""

    code = "bad_value"


class NoKnobs(UserError):
    """The job has nothing that could be changed, or not yet."""

    code = "no_knobs"


def knobs_of(ranks: list[Rank]) -> dict[str, dict[str, Any]]:
    """Return the knobs of a job, each with the ranks that have it, and with the values of these
    where they differ."""
    found: dict[str, dict[str, Any]] = {}
    for rank in ranks:
        for knob in rank.knobs:
            known = found.setdefault(knob["name"], {**knob, "ranks": [], "values": []})
            known["ranks"].append(rank.rank)
            known["values"].append(knob["value"])
    for knob in found.values():
        if all(value == knob["value"] for value in knob["values"]):
            del knob["values"]
    return dict(sorted(found.items()))


def valued(knob: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return a knob with the value that a change gave to it on all ranks, if one did."""
    if knob["name"] not in values:
        return knob
    return {**{key: knob[key] for key in knob if key != "values"}, "value": values[knob["name"]]}


def in_force(changes: Iterable[Entry], generation: int, step: int | None) -> dict[str, Any]:
    """Return the values that changes gave to knobs, as far as ranks have come to their steps."""
    values: dict[str, Any] = {}
    for entry in changes:
        is_done = entry.status is Status.APPLIED and entry.generation == generation
        if is_done or (step is not None and (entry.step or 0) <= step):
            values.update((name, wish["value"]) for name, wish in entry.command.payload.items())
    return values


def checked(job: Job, ranks: list[Rank], values: dict[str, Any]) -> dict[str, Any]:
    """Return values as the job's knobs take them, or refuse in words."""
    known = knobs_of(ranks)
    if not values:
        raise BadValue("nothing to set; write NAME=VALUE")
    if not known:
        raise NoKnobs(f"job {job.id} has no knobs: no rank has told of one")
    for name in values:
        if name not in known:
            remedy = f"there are {', '.join(known)}"
            raise NotFound("knob", name, known, remedy)
    return {name: _value(known[name], value) for name, value in values.items()}


def _value(knob: dict[str, Any], value: Any) -> Any:
    name, kind = knob["name"], knob["type"]
    value = _typed(name, kind, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = knob["low"], knob["high"]
        if low is not None and value < low:
            raise BadValue(f"{name} must be at least {low:g}, not {value:g}")
        if high is not None and value > high:
            raise BadValue(f"{name} must be at most {high:g}, not {value:g}")
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
    raise BadValue(f"{name} takes {_NAMES.get(kind, 'a text')}, not {shorten(repr(value))}")
