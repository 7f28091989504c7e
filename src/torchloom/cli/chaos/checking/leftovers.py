"""What is still there of a job, or of lives of its ranks, that has ended and should not be."""

import time
from collections.abc import Iterator

from torchloom.cli.chaos.checking import books, folders, processes
from torchloom.cli.chaos.checking.case import Case

TTL = 60.0  # seconds that a checkpoint which came to nothing may lie there


def find(case: Case, root: str, is_over: bool = True) -> tuple[str, ...]:
    """Return processes, shared memory and drafts that are left; who is about to go may go.

    Of a job that still runs, only processes of lives that have a successor, and drafts.
    """
    deadline = time.monotonic() + case.patience
    while found := [*_processes(case), *_memory(case)] if is_over else list(_outlived(case)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return (*found, *_drafts(root))


def _processes(case: Case) -> Iterator[str]:
    everyone = list(processes.living(case.proc))
    written = {line.process for book in books.read(case.ledger) for line in book}
    named = {one.key for one in processes.of_job(iter(everyone), case.job)}
    for one in everyone:
        if one.key in written | named:
            yield f"process {one.pid} still runs: {' '.join(one.words)[:60]}"


def _outlived(case: Case) -> Iterator[str]:
    """Yield processes of a rank's life that is not its newest, by what each was started with."""
    found = [(_seat(one), one) for one in processes.of_job(processes.living(case.proc), case.job)]
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    for (place, life), _ in found:
        newest[place] = max(life, newest.get(place, life))
    for (place, life), one in found:
        if place[1] and life < newest[place]:
            yield f"process {one.pid} of an earlier life of rank {place[1]} still runs"


def _seat(one: processes.Process) -> tuple[tuple[str, str], tuple[int, int]]:
    """Return whose process it is, by role and rank, and of which attempt and life."""
    env = dict(entry.partition("=")[::2] for entry in one.env)
    numbers = (env.get("LOOM_ATTEMPT", ""), env.get("LOOM_LIFE", ""))
    attempt, life = (int(text) if text.isdecimal() else 0 for text in numbers)
    return (env.get("LOOM_ROLE", ""), env.get("RANK", "")), (attempt, life)


def _memory(case: Case) -> Iterator[str]:
    for path in sorted(case.shm.glob(f"*{case.job}*")):
        yield f"{path} is still there"


def _drafts(root: str) -> Iterator[str]:
    if "://" in root:
        return
    for path in folders.drafts(root):
        age = time.time() - path.stat().st_mtime
        if age > TTL:
            yield f"{path.name} was begun {age:.0f} s ago and came to nothing"
