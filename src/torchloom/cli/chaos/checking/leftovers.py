"""What is still there of a job that has ended, and should not be."""

import time
from collections.abc import Iterator

from torchloom.cli.chaos.checking import books, folders, processes
from torchloom.cli.chaos.checking.case import Case

TTL = 60.0  # seconds that a checkpoint which came to nothing may lie there


def find(case: Case, root: str) -> tuple[str, ...]:
    """Return processes, shared memory and drafts that are left; who is about to go may go."""
    deadline = time.monotonic() + case.patience
    while found := [*_processes(case), *_memory(case)]:
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
