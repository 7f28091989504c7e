"""The record of the faults injected into a job: an append-only file in its run folder.

A fault is written before it is injected and again whenever more is known about it; of several
lines with one number the last counts. A fault whose last line is `planned` was interrupted, and
whether it happened is unknown.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

FILE = "chaos.jsonl"
Outcome = Literal["planned", "struck", "missed", "refused"]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a fault."""

    what: str  # rank, agent, weaver, nats, postgres, link, shard, disk, clock
    rank: int | None = None
    pid: int | None = None
    started: str | None = None  # start time, as the kernel reports it
    node: str = ""
    name: str = ""  # of an interface or a file


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault and its outcome so far; times are unix seconds."""

    n: int
    kind: str
    planned_at: float  # seconds since the series began
    struck_at: float | None = None
    target: Target | None = None
    lasts: float | None = None
    undone_at: float | None = None
    outcome: Outcome = "planned"
    why: str = ""
    recovered_at: float | None = None  # all ranks were up and training
    step: int | None = None  # the lowest of the job's ranks before it
    generation: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Strike":
        known = _known(cls, data)
        target = known.get("target")
        return cls(**{**known, "target": Target(**_known(Target, target)) if target else None})


@dataclass(frozen=True, slots=True)
class SeriesHead:
    """The first line of a series."""

    chaos: str
    job: str
    seed: int | None
    began: float
    faults: int
    plan: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Chaos:
    """A series of faults and why it ended; empty if it has not ended or was killed."""

    head: SeriesHead | None = None
    strikes: tuple[Strike, ...] = ()
    why: str = ""


class FaultLog:
    """The writer of the file; a full disk delays a line but does not lose it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._late: list[bytes] = []

    def begin(self, head: SeriesHead) -> None:
        self._append(asdict(head))

    def note(self, strike: Strike) -> None:
        self._append(strike.to_dict())

    def end(self, at: float, why: str) -> None:
        self._append({"ended": at, "why": why})

    def _append(self, line: Mapping[str, Any]) -> None:
        self._late.append(json.dumps(line).encode() + b"\n")
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while self._late:
                _write_whole(fd, self._late[0])
                del self._late[0]
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(fd)


def read(path: Path) -> Chaos:
    """Return the last series of a file."""
    found = read_all(path)
    return found[-1] if found else Chaos()


def read_all(path: Path) -> tuple[Chaos, ...]:
    """Return every series of a file, oldest first; torn lines are skipped."""
    found: list[Chaos] = []
    for line in _lines(path):
        if "chaos" in line:
            plan = tuple(line.get("plan", ()))
            found.append(Chaos(SeriesHead(**{**_known(SeriesHead, line), "plan": plan})))
        elif not found:
            continue
        elif "ended" in line:
            found[-1] = replace(found[-1], why=line.get("why", ""))
        else:
            found[-1] = _with(found[-1], Strike.from_dict(line))
    return tuple(found)


def _with(chaos: Chaos, strike: Strike) -> Chaos:
    by_number = {one.n: one for one in chaos.strikes} | {strike.n: strike}
    return replace(chaos, strikes=tuple(by_number[n] for n in sorted(by_number)))


def _lines(path: Path) -> Sequence[dict[str, Any]]:
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for line in whole:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # torn by a crash
        if isinstance(entry, dict):
            found.append(entry)
    return found


def _known(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields; a newer version may have written more."""
    names = [field.name for field in fields(cls)]
    return {name: data[name] for name in names if name in data}


def _write_whole(fd: int, line: bytes) -> None:
    """Write a whole line or nothing."""
    before = os.fstat(fd).st_size
    if os.write(fd, line) < len(line):
        os.ftruncate(fd, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
