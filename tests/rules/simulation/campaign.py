"""Many seeds on all cores: what was covered, and which seeds broke something."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .laws import Laws
from .world import World

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Found:
    """What a campaign saw."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0  # of one core
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Found") -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.seconds += other.seconds
        self.coverage.update(other.coverage)
        self.broken.update(other.broken)

    def to_json(self) -> str:
        coverage = [[*key, times] for key, times in sorted(self.coverage.items())]
        broken = list(self.broken.items())
        return json.dumps([self.seeds, self.events, self.seconds, coverage, broken])

    @classmethod
    def from_json(cls, text: str) -> "Found":
        seeds, events, seconds, coverage, broken = json.loads(text)
        counted = Counter({(what, which): times for what, which, times in coverage})
        return cls(seeds, events, seconds, counted, dict(broken))


def one(seed: int, laws: Laws | None = None) -> Found:
    """Run one seed."""
    found = Found(seeds=1)
    world = World(seed, laws)
    try:
        world.run()
    except (AssertionError, LookupError, TypeError, ValueError) as error:  # a rule may stumble, too
        found.broken[seed] = str(error) or repr(error)
    found.events = world.clock.count
    found.coverage = world.coverage
    return found


def several(seeds: Iterable[int]) -> Found:
    """Run some seeds, one after the other."""
    began, found = time.process_time(), Found()
    for seed in seeds:
        found.add(one(seed))
    found.seconds = time.process_time() - began
    return found


def campaign(first: int, count: int, processes: int) -> Found:
    """Run so many seeds; the result does not depend on how many processes do it."""
    total = Found()
    share = -(-count // processes)
    starts = range(first, first + count, share)
    words = [sys.executable, "-m", "tests.rules.simulation", "--many"]
    workers = [
        subprocess.Popen(
            [*words, str(start), str(min(share, first + count - start))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for start in starts
    ]
    for worker in workers:
        answer, _ = worker.communicate()
        if worker.returncode:
            raise RuntimeError(f"a worker ended with {worker.returncode}")
        total.add(Found.from_json(answer))
    return total


def first_broken(laws: Laws, most: int) -> tuple[int, str] | None:
    """Return the first seed that breaks something under these laws, and what."""
    for seed in range(most):
        if broken := one(seed, laws).broken:
            return seed, broken[seed]
    return None
