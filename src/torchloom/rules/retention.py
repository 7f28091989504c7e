"""Decide what of ended runs is removed: by age, and never of the last or pinned ones.

Nothing is removed unless the user has configured an age for it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torchloom.errors import UserError, shorten

What: TypeAlias = Literal["run", "metrics", "logs", "dumps"]

SECTION = "retention"
AGES = ("runs", "metrics", "logs", "dumps")
KEEP = 100  # runs that ended last and stay whatever their age
KEYS: Mapping[str, tuple[str, str]] = {  # of the section: default and meaning
    "runs": ("never", "Age after which an ended run is removed: folder, logs, metrics, commands"),
    "metrics": ("never", "Age after which the curves of an ended run are removed"),
    "logs": ("never", "Age after which the logs of an ended run are removed"),
    "dumps": ("never", "Age after which stacks of hung ranks are removed"),
    "keep": (str(KEEP), "Number of newest ended runs that are kept whatever their age"),
    "pinned": ("", "Ids, names or tags of runs that are kept, separated by spaces or commas"),
}
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])")
_FOREVER = ("never", "forever")


class BadRetention(UserError):
    """The section has an invalid value; so nothing is removed."""

    code = "bad_retention"

    def __init__(self, key: str, text: str, remedy: str) -> None:
        self.field = key
        self.remedy = remedy
        super().__init__(f"[{SECTION}] {key} = {shorten(text)}: {remedy}")


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """After how many seconds what is removed; None means never."""

    runs: float | None = None
    metrics: float | None = None
    logs: float | None = None
    dumps: float | None = None
    keep: int = KEEP
    pinned: frozenset[str] = frozenset()  # ids, names and tags

    @property
    def ages(self) -> dict[str, float]:
        """Return what is removed at all, and after how many seconds."""
        found = {name: getattr(self, name) for name in AGES}
        return {name: age for name, age in found.items() if age is not None}


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run as far as this is about it."""

    id: str
    is_over: bool
    ended_at: float | None = None
    name: str = ""
    tags: frozenset[str] = field(default_factory=frozenset)
    parent: str = ""  # the run whose rank launched this one: it goes with that


@dataclass(frozen=True, slots=True)
class Removal:
    """One thing that may be removed."""

    what: What
    job: str


def limits_of(values: Mapping[str, str]) -> RetentionLimits:
    """Parse a section of a config file; raises BadRetention."""
    for key, text in values.items():
        if key not in KEYS:
            raise BadRetention(key, text, f"unknown key; the keys are: {', '.join(KEYS)}")
    texts = {key: _bare(text) for key, text in values.items()}
    ages = {key: _age(key, text) for key, text in texts.items() if key in AGES}
    keep = _count("keep", texts["keep"]) if "keep" in texts else KEEP
    pinned = frozenset(re.split(r"[\s,]+", texts.get("pinned", ""))) - {""}
    return RetentionLimits(**ages, keep=keep, pinned=pinned)


def due(limits: RetentionLimits, runs: Iterable[EndedRun], now: float) -> list[Removal]:
    """Return what may be removed, oldest first; a run that is removed whole has one entry."""
    everything = list(runs)
    present = {run.id for run in everything}
    ended = [run for run in everything if run.is_over and run.ended_at is not None]
    over = [run for run in ended if run.parent not in present]
    over.sort(key=lambda run: (run.ended_at or 0.0, run.id))
    last = {run.id for run in over[max(0, len(over) - limits.keep) :]} if limits.keep else set()
    found: list[Removal] = []
    for run in over:
        if run.id not in last and not _is_pinned(limits, run):
            found += _of(limits, run.id, now - (run.ended_at or 0.0))
    gone = {one.job for one in found if one.what == "run"}
    return found + [Removal("run", run.id) for run in ended if run.parent in gone]


def in_words(limits: RetentionLimits) -> str:
    """Return what is removed when, for people."""
    if not limits.ages:
        return "everything is kept"
    ages = ", ".join(f"{name} after {_words(age)}" for name, age in limits.ages.items())
    pinned = f" and {len(limits.pinned)} pinned" if limits.pinned else ""
    return f"{ages}; the last {limits.keep} runs{pinned} stay"


def _of(limits: RetentionLimits, job: str, age: float) -> list[Removal]:
    if limits.runs is not None and age > limits.runs:
        return [Removal("run", job)]
    parts: tuple[What, ...] = ("metrics", "logs", "dumps")
    ages = limits.ages
    return [Removal(part, job) for part in parts if part in ages and age > ages[part]]


def _is_pinned(limits: RetentionLimits, run: EndedRun) -> bool:
    return not limits.pinned.isdisjoint({run.id, run.name, *run.tags})


def _bare(text: str) -> str:
    """Return a value without the quotes that other formats want."""
    text = text.strip()
    return (
        text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    )


def _age(key: str, text: str) -> float | None:
    if text.lower() in _FOREVER:
        return None
    found = _AGE.fullmatch(text.lower())
    if found is None:
        raise BadRetention(key, text, "write an age such as 12h, 90d or 4w, or never")
    return float(found[1]) * _SECONDS[found[2]]


def _count(key: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise BadRetention(key, text, "write how many runs to keep whatever their age, such as 100")
    return int(text)


def _words(seconds: float) -> str:
    for unit in ("w", "d", "h"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds / 60:g}m"
