"""Which knobs a job has, by what its ranks registered, which values they have and may take."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torchloom.errors import NotFound, UserError, shorten
from torchloom.rules.control.command import BadKnobValue, CommandEntry, NotAKnob, Status
from torchloom.weaver.store.rows import JobRow, PointRow, RankProcessRow

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
            remedy = f"there are {', '.join(known)}"
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
    raise BadKnobValue(f"{name} takes {_NAMES.get(kind, 'a text')}, not {shorten(repr(value))}")
