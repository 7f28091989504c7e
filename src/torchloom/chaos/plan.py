"""What is to happen, and when: read from a file, or drawn from a seed; nothing is touched here."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from torchloom.chaos.faults.kinds import RANK, FaultKind, kind_of
from torchloom.errors import UserError, nearest, shorten

_T = TypeVar("_T")

CLOSE = 0.1  # seconds: the second of two faults hits what the first has not left yet
SHARE = 0.2  # of all faults are so close to the one before, at least
MOST = 10_000  # faults of a plan
_MORE = 0.1  # of the others are close all the same, so that nobody can count on where
_LONGEST = 86_400.0 * 30
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_ALWAYS = ("at", "kind")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to come. What is not said is chosen when it is struck."""

    at: float  # seconds since the series began
    kind: str
    rank: int | None = None
    lasts: float | None = None  # as long as its kind says, where nobody does
    link: str = ""  # IFACE, or NETNS/IFACE
    mb: int | None = None  # to fill, at most
    by: float | None = None  # seconds that a clock jumps

    def said(self) -> dict[str, Any]:
        """Return it as a plan would say it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


class BadPlan(UserError):
    """A plan cannot be followed; the message names the fault and the field."""

    code = "bad_plan"

    def __init__(self, source: str, what: str) -> None:
        super().__init__(f"{source}: {what}")


# Reading.


def read(text: str, source: str = "plan") -> tuple[Fault, ...]:
    """Return the faults of a YAML list, in the order of their times."""
    import yaml

    try:
        told = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadPlan(source, f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(told, list) or not told:
        shape = "a list of faults like `- {at: 3.2, kind: kill, rank: 2}`"
        raise BadPlan(source, f"it must hold {shape}")
    if len(told) > MOST:
        raise BadPlan(source, f"{len(told)} faults; at most {MOST} are followed")
    faults = [_fault(each, f"{source}: fault {n}") for n, each in enumerate(told, 1)]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(told: Any, where: str) -> Fault:
    if not isinstance(told, dict):
        raise BadPlan(where, "it must be a mapping like {at: 3.2, kind: kill, rank: 2}")
    for name in _ALWAYS:
        if name not in told:
            raise BadPlan(where, f"{name} is missing; write at: SECONDS and kind: NAME")
    kind = kind_of(str(told["kind"]))
    _check_names(told, kind, where)
    fault = Fault(
        at=_seconds(told, "at", where, 0.0),
        kind=kind.name,
        rank=_count(told, "rank", where, 0),
        lasts=_seconds(told, "lasts", where, 0.0) if "lasts" in told else None,
        link=_word(told, "link", where),
        mb=_count(told, "mb", where, 1),
        by=_number(told["by"], "by", where) if "by" in told else None,
    )
    if "link" in kind.fields and not fault.link:
        raise BadPlan(where, "link is missing; write link: IFACE or link: NETNS/IFACE")
    return fault


def _check_names(told: Mapping[Any, Any], kind: FaultKind, where: str) -> None:
    known = (*_ALWAYS, *kind.fields)
    for name in map(str, told):
        if name not in known:
            hint = nearest(name, known) or f"{kind.name} takes {', '.join(known)}"
            raise BadPlan(where, f"{shorten(name)!r} is no field of {kind.name}; {hint}")


def _seconds(told: Mapping[str, Any], name: str, where: str, least: float) -> float:
    value = told[name]
    if isinstance(value, str) and not value.lstrip().startswith("-"):
        value = seconds(value, f"{where}: {name}")
    found = _number(value, name, where)
    if not least <= found <= _LONGEST:
        raise BadPlan(where, f"{name} is {found:g}; it must be {least:g} or more seconds")
    return found


def _number(value: Any, name: str, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise BadPlan(where, f"{name} is {shorten(str(value))!r}; it must be a number of seconds")
    return float(value)


def _count(told: Mapping[str, Any], name: str, where: str, least: int) -> int | None:
    if name not in told:
        return None
    value = told[name]
    if type(value) is not int or not least <= value < 1 << 31:
        raise BadPlan(where, f"{name} is {shorten(str(value))!r}; it must be {least} or more")
    return value


def _word(told: Mapping[str, Any], name: str, where: str) -> str:
    value = told.get(name, "")
    if not isinstance(value, str) or not value.isprintable() or value.startswith("-"):
        raise BadPlan(where, f"{name} must be a name, not {shorten(repr(value))}")
    return value


def seconds(text: str, where: str) -> float:
    """Return `5s`, `200ms`, `2m` or a bare number as seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{where}: {shorten(text)!r} is no time; write 5s, 200ms, 2m or 1h")
    return float(found[1]) * _UNITS[found[2]]


# Drawing.


def draw(
    seed: int,
    mtbf: float,
    kinds: Sequence[FaultKind],
    ranks: Sequence[int],
    most: int = MOST,
    until: float = math.inf,
    links: Sequence[str] = (),
) -> tuple[Fault, ...]:
    """Return the faults of a seed: the same one says the same, whoever draws and wherever.

    Gaps are exponential with this mean; of any number of faults from the first on, at least a
    fifth come within 100 ms of the one before, and then at something else where there is a choice.
    """
    chance, faults, close = random.Random(seed), list[Fault](), 0
    while len(faults) < min(most, MOST):
        is_close = bool(faults) and (close < SHARE * (len(faults) + 1) or chance.random() < _MORE)
        gap = CLOSE * chance.random() if is_close else -mtbf * math.log(1.0 - chance.random())
        before = faults[-1] if faults else None
        at = round((before.at if before else 0.0) + gap, 3)
        if at > until:
            break
        close += is_close
        faults.append(_drawn(chance, at, kinds, ranks, links, before if is_close else None))
    return tuple(faults)


def _drawn(
    chance: random.Random,
    at: float,
    kinds: Sequence[FaultKind],
    ranks: Sequence[int],
    links: Sequence[str],
    before: Fault | None,
) -> Fault:
    hit = None if before is None else kind_of(before.kind).hits  # and not back by then
    kind = _one(chance, [one for one in kinds if one.hits == RANK or one.hits != hit] or kinds)
    others = [rank for rank in ranks if before is None or rank != before.rank]
    rank = _one(chance, others or ranks) if kind.hits == RANK else None
    length = 0.5 + chance.random()  # drawn in any case: what one kind draws moves no other
    lasts = None if kind.seconds is None else round(kind.seconds * length, 3)
    link = _one(chance, links) if "link" in kind.fields and links else ""
    return Fault(at=at, kind=kind.name, rank=rank, lasts=lasts, link=link)


def _one(chance: random.Random, choices: Sequence[_T]) -> _T:
    return choices[int(chance.random() * len(choices))]
