"""What ranks noted of their tensors before each step, read back and compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Digests = Mapping[str, str]  # by a tensor's name
Track = Mapping[int, Digests]  # by the step before which they were taken


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that two runs do not have in common."""

    step: int
    rank: int
    tensor: str


def read(folder: Path, ranks: int) -> list[Track]:
    """Return what each rank noted; a rank that noted nothing has an empty track."""
    return [_track(folder / f"rank_{rank}.jsonl") for rank in range(ranks)]


def _track(path: Path) -> Track:
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {line["step"]: line["tensors"] for line in lines}


def common(tracks: Sequence[Track], limit: int | None = None) -> list[int]:
    """Return the steps that all tracks have, in order, up to a limit."""
    steps = set[int].intersection(*map(set, tracks)) if tracks else set()
    return sorted(step for step in steps if limit is None or step <= limit)


def first_difference(
    one: Sequence[Track], other: Sequence[Track], steps: Sequence[int]
) -> Difference | None:
    """Return the first step, and in it the first rank and tensor, that two runs have otherwise."""
    for step in steps:
        for rank, (left, right) in enumerate(zip(one, other, strict=True)):
            if (name := odd(left[step], right[step])) is not None:
                return Difference(step, rank, name)
    return None


def odd(one: Digests, other: Digests) -> str | None:
    """Return the first tensor that is not the same, or that only one has."""
    for name in (*one, *other):
        if one.get(name) != other.get(name):
            return name
    return None
