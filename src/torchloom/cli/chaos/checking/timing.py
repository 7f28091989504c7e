"""Measure what each fault cost: until it was known, until all went on, steps, and lives."""

from dataclasses import dataclass

from torchloom.cli.chaos.checking.books import Book, Line
from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.naming import Name
from torchloom.cli.chaos.checking.strikes import Struck


@dataclass(frozen=True, slots=True)
class Cost:
    """What one fault cost; times are seconds from the strike, nothing where nobody knows."""

    detected: float | None
    recovered: float | None
    generation: int | None  # that came of it; nothing where members stayed as they were
    again: int | None  # steps that were done again
    lost: int | None  # of those, committed ones
    kept: int | None  # ranks that were not hit and lived on
    others: int | None  # ranks that were not hit


def cost_of(found: Evidence, fault: Struck, name: Name) -> Cost:
    """Return what a fault cost, by the ledgers; by who struck it where these do not tell."""
    detected = None if name.time is None else max(0.0, name.time - fault.at)
    told = None if fault.recovered is None else max(0.0, fault.recovered - fault.at)
    lines = [line for book in found.books for line in book]
    if not lines:
        return Cost(detected, told, None, None, None, None, None)
    before = max((line.generation for line in lines if line.time <= fault.at), default=0)
    newer = (line.generation for line in lines if line.is_applied and line.generation > before)
    after = min(newer, default=None)
    if after is None or not _came_of_it(found, fault, after):
        return Cost(detected, told, None, 0, 0, None, None)
    start = _start(lines, after)
    kept, others = _survivors(found, fault, after)
    went_on = _went_on(found.books, after)
    return Cost(
        detected,
        told if went_on is None else max(0.0, went_on - fault.at),
        after,
        max(0, _reached(lines, after) - start),
        max(0, _committed(found, lines, after) - start),
        kept,
        others,
    )


def _came_of_it(found: Evidence, fault: Struck, after: int) -> bool:
    """Tell whether a generation began before the next fault behind this one's recovery."""
    if fault.recovered is None:
        return True
    lines = (line for book in found.books for line in book if line.generation == after)
    return min(line.time for line in lines) <= fault.recovered


def _start(lines: list[Line], generation: int) -> int:
    """Return the step behind which a generation began."""
    joined = [line.step for line in lines if line.generation == generation and not line.is_applied]
    return min(joined, default=-1)


def _reached(lines: list[Line], after: int) -> int:
    done = (line.step for line in lines if line.is_applied and line.generation < after)
    return max(done, default=-1)


def _committed(found: Evidence, lines: list[Line], after: int) -> int:
    """Return the furthest step that somebody who lives on had applied, or a checkpoint has."""
    alive = {line.incarnation for line in lines if line.generation == after}
    applied = (
        line.step
        for line in lines
        if line.is_applied and line.generation < after and line.incarnation in alive
    )
    began = min(line.time for line in lines if line.generation == after)
    saved = (
        row["step"] - 1
        for row in found.base.checkpoints
        if row["state"] == "committed"
        and (row["committed_at"] or began) < began
        and f"ckpt_step_{row['step']:05d}" not in found.hit
    )
    return max((*applied, *saved), default=-1)


def _survivors(found: Evidence, fault: Struck, after: int) -> tuple[int, int]:
    """Return how many of the ranks that nothing hit kept their process, and how many there are."""
    kept = others = 0
    hit = _hit_with(found, fault, after)
    for rank, book in enumerate(found.books):
        old = [line.process for line in book if line.generation < after]
        new = [line.process for line in book if line.generation == after]
        if rank not in hit and old and new:
            others += 1
            kept += old[-1] == new[0]
    return kept, others


def _hit_with(found: Evidence, fault: Struck, after: int) -> set[int | None]:
    """Return the ranks that were hit by now, since the members before began to train."""
    lines = [line for book in found.books for line in book if line.is_applied]
    began = min(line.time for line in lines if line.generation == after)
    trained = [line.generation for line in lines if line.generation < after]
    since = min(
        (line.time for line in lines if line.generation == max(trained, default=-1)), default=0.0
    )
    return {one.rank for one in found.faults if since <= one.at <= began} | {fault.rank}


def _went_on(books: tuple[Book, ...], after: int) -> float | None:
    """Return when every rank had taken a step in a generation, or in a later one."""
    times = [
        next((line.time for line in book if line.is_applied and line.generation >= after), None)
        for book in books
    ]
    return None if None in times else max(time for time in times if time is not None)
