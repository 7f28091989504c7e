"""What ranks wrote of themselves and of their steps, and what must be true of it after any hit."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

Bits = tuple[str, str]  # of what all ranks share, of what is a rank's own
Chain = dict[int, "Line"]  # by step


@dataclass(frozen=True)
class Line:
    """One step, as a rank wrote it down at its end."""

    generation: int
    step: int
    bits: Bits
    epoch: int
    samples: tuple[int, ...]
    rate: float
    time: float


@dataclass
class Life:
    """One run of the program in one process."""

    process: tuple[int, int, str]  # pid, start time, an object made at random
    attempt: str
    began: float
    lines: list[Line] = field(default_factory=list)


def read(out: Path, rank: int) -> list[Life]:
    """Return the lives of a rank; a line that its end has cut short is left out."""
    path, lives = out / f"rank-{rank}", list[Life]()
    whole = path.read_bytes() if path.exists() else b""
    for told in map(json.loads, whole.split(b"\n")[:-1]):
        process = (told["pid"], told["started"], told["token"])
        if "main" in told:
            lives.append(Life(process, told["attempt"], told["time"]))
            continue
        words = (lives[-1].process, lives[-1].attempt)
        assert words == (process, told["attempt"]), f"a process became another: {told}"
        lives[-1].lines.append(_line(told))
    return lives


def _line(told: Mapping[str, Any]) -> Line:
    bits, samples = (told["digest"], told["own"]), tuple(told["samples"])
    names = ("generation", "step", "epoch", "rate", "time")
    return Line(bits=bits, samples=samples, **{name: told[name] for name in names})


def chain(lives: Sequence[Life]) -> Chain:
    """Return what each step was; one that was repeated must have been the same."""
    found: Chain = {}
    for line in lines_of(lives):
        before = found.setdefault(line.step, line)
        assert same(before, line), f"step {line.step} was another when it was repeated"
    return found


def same(one: Line, other: Line) -> bool:
    """Tell whether two are one step, with the same bits behind it."""
    return (one.step, one.bits, one.epoch, one.samples) == (
        other.step,
        other.bits,
        other.epoch,
        other.samples,
    )


def lines_of(lives: Sequence[Life]) -> list[Line]:
    return [line for life in lives for line in life.lines]


def same_steps(ranks: Sequence[Sequence[Life]], expected: Sequence[Chain]) -> None:
    """Check that every rank did every step of an undisturbed run, with the same bits behind it.

    One that a rank was torn out of it got from another, if that had applied it.
    """
    found = [chain(lives) for lives in ranks]
    for rank, (mine, its) in enumerate(zip(found, expected, strict=True)):
        torn = {
            step
            for step, generation in torn_out_of(ranks[rank]).items()
            if any(step in one and one[step].generation <= generation for one in found)
        }
        lost = sorted(its.keys() - mine.keys() - torn)
        assert not lost, f"rank {rank} did not do steps {lost}"
        other = sorted(step for step in mine if step not in its or not same(mine[step], its[step]))
        assert not other, f"rank {rank}: not the bits of an undisturbed run at steps {other}"


def torn_out_of(lives: Sequence[Life]) -> dict[int, int]:
    """Return the steps that a rank did not do because a generation ended in each, with that."""
    lines = lines_of(lives)
    return {
        before.step + 1: before.generation
        for before, after in pairwise(lines)
        if after.generation > before.generation and after.step == before.step + 2
    }


def each_sample_once(
    ranks: Sequence[Sequence[Life]], expected: Sequence[Chain], samples: int, epochs: int
) -> None:
    """Check what was trained on in the run that counts: each step as it was done last."""
    seen = [Counter[int]() for _ in range(epochs)]
    for lives, its in zip(ranks, expected, strict=True):
        last = {line.step: line for line in lines_of(lives)}
        for step in torn_out_of(lives):  # others have applied it, with what it gave
            last.setdefault(step, its[step])
        for line in last.values():
            seen[line.epoch].update(line.samples)
    assert seen == [Counter(range(samples))] * epochs


def survivors_survived(ranks: Sequence[Sequence[Life]], deaths: Mapping[int, int]) -> None:
    """Check that nobody died but who was hit, and that nobody ran the program again."""
    assert [len(lives) for lives in ranks] == [
        1 + deaths.get(rank, 0) for rank in range(len(ranks))
    ]
    processes = [life.process for lives in ranks for life in lives]
    assert len(set(processes)) == len(processes)


def one_attempt(ranks: Sequence[Sequence[Life]]) -> None:
    assert {life.attempt for lives in ranks for life in lives} == {"0"}


def generations_grew(ranks: Sequence[Sequence[Life]], least: int, most: int) -> None:
    """Check that members changed so many times, and that nobody went back.

    On a machine with too much to do the word of a death may take longer than its survivors wait
    for it; then they meet once more.
    """
    if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        most *= 2
    every = [[line.generation for line in lines_of(lives)] for lives in ranks]
    assert all(one == sorted(one) for one in every), "a rank went back to an older generation"
    grew = {one[-1] - min(map(min, every)) for one in every}
    assert len(grew) == 1, f"ranks end in different generations: {sorted(grew)}"
    assert least <= min(grew) <= most, f"the generation grew by {grew}, not by {least} to {most}"


def nothing_lost(ranks: Sequence[Sequence[Life]]) -> None:
    """Check that no life begins before a step that a survivor of the moment had applied."""
    for lives in ranks:
        for life in lives[1:]:
            began = min((line.step for line in life.lines), default=None)
            before = [line.step for line in lines_of(lives) if line.time < life.began]
            if began is not None and before:
                assert began >= max(before), f"went on at {began}, had applied {max(before)}"
