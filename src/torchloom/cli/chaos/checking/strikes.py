"""What was done to a job, as the one who did it has written it down."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.cli.chaos.checking.case import lines_of


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault: what it was, whom it hit, and when it was over."""

    n: int
    kind: str
    at: float  # unix seconds
    rank: int | None = None
    process: tuple[int, int] | None = None  # pid, and when it began in ticks
    node: str = ""
    name: str = ""  # the file or the link that was hit
    undone: float | None = None
    recovered: float | None = None
    why: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One series of faults on a job; those that were not struck are only counted."""

    seed: int | None
    faults: tuple[Struck, ...]
    missed: int
    ended: str  # why it came to an end; empty while it goes on


def read(path: Path) -> Series:
    """Return the last series of a record; of several lines about one fault the last one stands."""
    head: Mapping[str, Any] = {}
    told: dict[int, Mapping[str, Any]] = {}
    ended = ""
    for line in lines_of(path):
        if "chaos" in line:
            head, told, ended = line, {}, ""
        elif "ended" in line:
            ended = str(line.get("why") or "ended")
        elif "n" in line:
            told[int(line["n"])] = line
    struck = [one for one in told.values() if one.get("outcome") == "struck"]
    missed = sum(one.get("outcome") in ("missed", "refused") for one in told.values())
    faults = sorted(map(_fault, struck), key=lambda one: (one.at, one.n))
    return Series(head.get("seed"), tuple(faults), missed, ended)


def _fault(told: Mapping[str, Any]) -> Struck:
    target = told.get("target") or {}
    pid, started = target.get("pid"), target.get("started")
    return Struck(
        n=int(told["n"]),
        kind=str(told["kind"]),
        at=float(told["struck_at"]),
        rank=target.get("rank"),
        process=None if pid is None or not started else (int(pid), int(started)),
        node=str(target.get("node") or ""),
        name=str(target.get("name") or ""),
        undone=told.get("undone_at"),
        recovered=told.get("recovered_at"),
        why=str(told.get("why") or ""),
        step=told.get("step"),
    )
