"""Judge who was there: one life of a rank at a time, and nobody of an older generation acts."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from torchloom.cli.chaos.checking.books import Book, applied
from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.verdicts import Verdict, first, unknown

SKEW = 1.0  # seconds that the clocks of hosts may differ


def one_life(found: Evidence) -> Verdict:
    """I6: by `/proc`, by the ledgers, and by who committed checkpoints."""
    if found.silent:
        return unknown("I6", found.silent)
    own = (fact for rank, book in enumerate(found.books) for fact in _came_back(rank, book))
    return first("I6", *_at_once(found), *own, *_late(found), *_zombies(found))


def _at_once(found: Evidence) -> Iterator[str]:
    for look in found.looks:
        for rank, lives in look.lives:
            if len(lives) > 1:
                yield f"behind fault {look.n} rank {rank} had {len(lives)} lives at once"


def _came_back(rank: int, book: Book) -> Iterator[str]:
    seen: list[str] = []
    for line in book:
        if line.incarnation in seen[:-1]:
            yield f"rank {rank}: a life wrote step {line.step} after its successor had"
        if line.incarnation not in seen:
            seen.append(line.incarnation)
    for before, after in pairwise(book):
        if after.generation < before.generation:
            yield f"rank {rank} went from generation {before.generation} to {after.generation}"


def _late(found: Evidence) -> Iterator[str]:
    """Yield a step of an older generation behind one of a newer; not where clocks were moved."""
    if any(fault.kind == "clock-step" for fault in found.faults):
        return
    began: dict[int, float] = {}
    for line in (line for book in found.books for line in applied(book)):
        began[line.generation] = min(line.time, began.get(line.generation, line.time))
    for rank, book in enumerate(found.books):
        for line in applied(book):
            newer = [time for generation, time in began.items() if generation > line.generation]
            if newer and line.time > min(newer) + SKEW:
                yield f"rank {rank} applied step {line.step} in generation {line.generation}, late"


def _zombies(found: Evidence) -> Iterator[str]:
    """Yield a checkpoint that somebody of another generation has committed."""
    rows = [row for row in found.base.checkpoints if row["state"] == "committed"]
    for step, count in Counter(row["step"] for row in rows).items():
        if count > 1:
            yield f"the checkpoint of step {step} was committed {count} times"
    known = {row["step"]: row["generation"] for row in rows}
    for saved in found.saved or ():
        its = known.get(saved.step, saved.generation)
        if saved.generation is not None and saved.generation != its:
            yield f"{saved.path.name} is generation {saved.generation}'s, the database has {its}"
