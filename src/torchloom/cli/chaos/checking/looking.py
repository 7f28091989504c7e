"""One look at a job and its plane while they live: who is there, what lies there, how much."""

import time
from dataclasses import dataclass
from pathlib import Path

from torchloom.cli.chaos.checking import answers, books, folders, processes
from torchloom.cli.chaos.checking.case import Case


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment."""

    n: int  # behind which fault; -1: before the first
    time: float
    lives: tuple[tuple[int, tuple[str, ...]], ...]  # by rank: incarnations whose process lives
    newest: int | None  # the highest committed step
    half: str  # a checkpoint that is named as if it were committed, and is not
    memory: tuple[tuple[str, int], ...]  # bytes of each part of the plane
    spool: int  # bytes
    logs: int  # bytes, of the plane
    answers: tuple[str, ...] | None = None  # what was wrong with those of the plane, if asked


def look(case: Case, n: int, root: str) -> Look:
    """Look once."""
    found = list(processes.living(case.proc))
    saved = folders.committed(root) or []
    ours = [one for one in found if f"LOOM_HOME={case.home}" in one.env and one.part]
    return Look(
        n=n,
        time=time.time(),
        lives=_lives(case, {one.key for one in found}),
        newest=max((one.step for one in saved), default=None),
        half=next((one.problem for one in saved if one.problem), ""),
        memory=tuple(sorted((one.part, one.memory) for one in ours)),
        spool=_bytes(case.home / "plane" / "spool"),
        logs=_bytes(case.home / "plane" / "logs"),
        answers=answers.wrong(case) if case.api else None,
    )


def _lives(case: Case, living: set[tuple[int, int]]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return, of each rank, all lives that have ever written a line and are still there."""
    return tuple(
        (rank, tuple(dict.fromkeys(line.incarnation for line in book if line.process in living)))
        for rank, book in enumerate(books.read(case.ledger))
    )


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # it has just gone
            continue
    return total
