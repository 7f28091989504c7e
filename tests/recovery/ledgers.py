"""What the ranks of a job wrote of each step, and what must be true of it after any fault."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Line:
    """One step of one rank, as it wrote it down behind it."""

    attempt: str
    generation: int
    step: int
    digest: str
    epoch: int
    samples: tuple[int, ...]
    rate: float


def read(out: Path, rank: int) -> list[Line]:
    """Return a rank's ledger; a line that its end has cut short is left out."""
    path = out / f"rank-{rank}"
    whole = path.read_bytes() if path.exists() else b""
    lines = [json.loads(line) for line in whole.split(b"\n")[:-1]]
    return [
        Line(attempt, int(generation), step, digest, epoch, tuple(samples), rate)
        for attempt, generation, step, digest, epoch, samples, rate in lines
    ]


def chain(lines: Iterable[Line]) -> dict[int, str]:
    """Return the digest behind each step; a step that was repeated must have had the same."""
    found: dict[int, str] = {}
    for line in lines:
        before = found.setdefault(line.step, line.digest)
        assert before == line.digest, f"step {line.step} had other weights when it was repeated"
    return found


def starts(lines: Sequence[Line]) -> dict[int, int]:
    """Return the first step of each generation."""
    found: dict[int, int] = {}
    for line in lines:
        found.setdefault(line.generation, line.step)
    return found


def last_word(ledgers: Sequence[Sequence[Line]]) -> list[dict[int, Line]]:
    """Return, for each rank, every step as its last generation did it."""
    return [{line.step: line for line in lines} for lines in ledgers]


def seen(ledgers: Sequence[Sequence[Line]], epoch: int) -> Counter[int]:
    """Return how often each sample was trained on in an epoch of the run that counts."""
    found: Counter[int] = Counter()
    for steps in last_word(ledgers):
        for line in steps.values():
            if line.epoch == epoch:
                found.update(line.samples)
    return found


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return what a run's own history has of a kind, read as plain lines."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return [told for told in map(json.loads, lines) if told["event"] == kind]
