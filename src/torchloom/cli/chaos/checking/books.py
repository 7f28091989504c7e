"""The ranks' own ledgers, read as plain lines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.cli.chaos.checking.case import lines_of

Book = tuple["Line", ...]  # of one rank, in the order it was written


@dataclass(frozen=True, slots=True)
class Line:
    """One step of one rank, or what it began a generation with."""

    attempt: int
    generation: int
    incarnation: str
    process: tuple[int, int]
    is_applied: bool
    step: int
    bits: tuple[str, str, str]  # of parameters, optimizers, buffers
    samples: str | None
    chance: str | None
    time: float


def read(folder: Path | None) -> tuple[Book, ...]:
    """Return the books of a folder by rank; a rank without one has an empty one."""
    paths = {} if folder is None else {_rank(path): path for path in folder.glob("rank_*.jsonl")}
    ranks = range(max(paths, default=-1) + 1)
    return tuple(_book(paths[rank]) if rank in paths else () for rank in ranks)


def applied(book: Iterable[Line]) -> list[Line]:
    """Return the steps that a rank did itself."""
    return [line for line in book if line.is_applied]


def last_word(book: Iterable[Line]) -> dict[int, Line]:
    """Return each step as it was done last."""
    return {line.step: line for line in book if line.is_applied}


def _rank(path: Path) -> int:
    number = path.stem.removeprefix("rank_")
    return int(number) if number.isdecimal() else -1


def _book(path: Path) -> Book:
    return tuple(_line(told) for told in lines_of(path))


def _line(told: Mapping[str, Any]) -> Line:
    return Line(
        attempt=int(told["attempt"]),
        generation=int(told["generation"]),
        incarnation=str(told["incarnation"]),
        process=(int(told["pid"]), int(told["started"])),
        is_applied=told["kind"] == "applied",
        step=int(told["step"]),
        bits=(told["digest"], told["state"], told["own"]),
        samples=told["samples"],
        chance=told["chance"],
        time=float(told["time"]),
    )
