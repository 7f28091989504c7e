"""Plans of faults, read from a file or drawn from a seed; nothing is injected here."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from torchloom.chaos.faults.kinds import RANK, FaultKind, kind_of
from torchloom.errors import UserError, nearest, shorten

_T = TypeVar("_T")

CLOSE = 0.1  # seconds: a close fault hits a job that has not recovered from the one before
SHARE = 0.2  # least share of close faults
MOST = 10_000  # faults of a plan
_MORE = 0.1  # probability that another fault is close too, so that the positions vary
_LONGEST = 86_400.0 * 30
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_ALWAYS = ("at", "kind")


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault. Fields that are not given are chosen when it is injected."""

    at: float  # seconds since the series began
    kind: str
    rank: int | None = None
    lasts: float | None = None  # default: the duration of its kind
    link: str = ""  # IFACE, or NETNS/IFACE
    mb: int | None = None  # to fill, at most
    by: float | None = None  # seconds that a clock jumps

    def to_dict(self) -> dict[str, Any]:
        """Return the fault as an entry of a plan."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


class BadPlan(UserError):
    """A plan is invalid; the message names the fault and the field."""

    code = "bad_plan"

    def __init__(self, source: str, what: str) -> None:
        super().__init__(f"{source}: {what}")


# Reading.


def read(text: str, source: str = "plan") -> tuple[Fault, ...]:
    """Return the faults of a YAML list, in the order of their times."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadPlan(source, f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, list) or not data:
        shape = "a list of faults like `- {at: 3.2, kind: kill, rank: 2}`"
        raise BadPlan(source, f"it must be {shape}")
    if len(data) > MOST:
        raise BadPlan(source, f"{len(data)} faults; at most {MOST} are allowed")
    faults = [_fault(each, f"{source}: fault {n}") for n, each in enumerate(data, 1)]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(data: Any, where: str) -> Fault:
    if not isinstance(data, dict):
        raise BadPlan(where, "it must be a mapping like {at: 3.2, kind: kill, rank: 2}")
    for name in _ALWAYS:
        if name not in data:
            raise BadPlan(where, f"{name} is missing; write at: SECONDS and kind: NAME")
    kind = kind_of(str(data["kind"]))
    _check_names(data, kind, where)
    fault = Fault(
        at=_seconds(data, "at", where, 0.0),
        kind=kind.name,
        rank=_count(data, "rank", where, 0),
        lasts=_seconds(data, "lasts", where, 0.0) if "lasts" in data else None,
        link=_word(data, "link", where),
        mb=_count(data, "mb", where, 1),
        by=_number(data["by"], "by", where) if "by" in data else None,
    )
    if "link" in kind.fields and not fault.link:
        raise BadPlan(where, "link is missing; write link: IFACE or link: NETNS/IFACE")
    return fault


def _check_names(data: Mapping[Any, Any], kind: FaultKind, where: str) -> None:
    known = (*_ALWAYS, *kind.fields)
    for name in map(str, data):
        if name not in known:
            hint = nearest(name, known) or f"{kind.name} takes {', '.join(known)}"
            raise BadPlan(where, f"{shorten(name)!r} is not a field of {kind.name}; {hint}")


def _seconds(data: Mapping[str, Any], name: str, where: str, least: float) -> float:
    value = data[name]
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


def _count(data: Mapping[str, Any], name: str, where: str, least: int) -> int | None:
    if name not in data:
        return None
    value = data[name]
    if type(value) is not int or not least <= value < 1 << 31:
        raise BadPlan(where, f"{name} is {shorten(str(value))!r}; it must be {least} or more")
    return value


def _word(data: Mapping[str, Any], name: str, where: str) -> str:
    value = data.get(name, "")
    if not isinstance(value, str) or not value.isprintable() or value.startswith("-"):
        raise BadPlan(where, f"{name} must be a name, not {shorten(repr(value))}")
    return value


def seconds(text: str, where: str) -> float:
    """Return `5s`, `200ms`, `2m` or a bare number as seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{where}: {shorten(text)!r} is not a time; write 5s, 200ms, 2m or 1h")
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
    """Return the faults of a seed; the same seed gives the same faults on every machine.

    Gaps are exponential with this mean; at least a fifth of the faults come within 100 ms of the
    one before, and then hit another target if there is one.
    """
    rng, faults, close = random.Random(seed), list[Fault](), 0
    while len(faults) < min(most, MOST):
        is_close = bool(faults) and (close < SHARE * (len(faults) + 1) or rng.random() < _MORE)
        gap = CLOSE * rng.random() if is_close else -mtbf * math.log(1.0 - rng.random())
        before = faults[-1] if faults else None
        at = round((before.at if before else 0.0) + gap, 3)
        if at > until:
            break
        close += is_close
        faults.append(_drawn(rng, at, kinds, ranks, links, before if is_close else None))
    return tuple(faults)


def _drawn(
    rng: random.Random,
    at: float,
    kinds: Sequence[FaultKind],
    ranks: Sequence[int],
    links: Sequence[str],
    before: Fault | None,
) -> Fault:
    hit = None if before is None else kind_of(before.kind).hits  # not recovered by then
    kind = _one(rng, [one for one in kinds if one.hits == RANK or one.hits != hit] or kinds)
    others = [rank for rank in ranks if before is None or rank != before.rank]
    rank = _one(rng, others or ranks) if kind.hits == RANK else None
    length = 0.5 + rng.random()  # always drawn, so that one kind does not shift the others
    lasts = None if kind.seconds is None else round(kind.seconds * length, 3)
    link = _one(rng, links) if "link" in kind.fields and links else ""
    return Fault(at=at, kind=kind.name, rank=rank, lasts=lasts, link=link)


def _one(rng: random.Random, choices: Sequence[_T]) -> _T:
    return choices[int(rng.random() * len(choices))]
