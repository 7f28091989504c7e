"""What ranks tell in the plane's bench: five numbers a step, as their agents send them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import NumberedBatch

NAMES = ("loss", "accuracy", "lr", "norm", "tokens")


@dataclass
class Ranks:
    """Ranks of a job that log at one pace; each batch has so many steps of one of them."""

    count: int
    steps: int
    job: str = "bench"
    number: int = 0

    def __post_init__(self) -> None:
        lives = [f"{self.job}-{rank}" for rank in range(self.count)]
        self.heads = [Head(VERSION, self.job, 0, rank, life) for rank, life in enumerate(lives)]

    @property
    def points(self) -> int:
        """Points of one round."""
        return self.count * self.steps * len(NAMES)

    def round(self) -> Iterator[NumberedBatch]:
        """Yield the next batch of every rank."""
        first = self.number * self.steps
        self.number += 1
        for head in self.heads:
            rows = tuple(
                (s, 1.7e9 + s / 10, 1 / (s + 1), 0.5, 1e-3, 2.5 + head.rank, 4096.0)
                for s in range(first, first + self.steps)
            )
            yield NumberedBatch(head, self.number, [Metrics(head, NAMES, rows)])
