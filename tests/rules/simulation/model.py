"""A training whose every bit is known: what a rank computes is a hash of all it depends on."""

from dataclasses import dataclass

from torchloom.rules.membership.election import Holding


@dataclass(frozen=True, slots=True)
class Own:
    """What one rank alone knows after a forward pass: buffers, and where its loader is."""

    buffers: int
    cursor: int


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a copy or checkpoint of a step."""

    shared: int
    own: Own


def first_shared(holding: Holding, rank: int) -> int:
    return hash((7, rank if holding is Holding.SHARDED else 0))


def first_own(rank: int) -> Own:
    return Own(hash((11, rank)), 0)


def forward(own: Own, step: int, rank: int) -> Own:
    return Own(hash((own.buffers, own.cursor, step, rank)), own.cursor + 1)


def gradient(shared: int, own: Own, step: int, rank: int) -> int:
    return hash((shared, own.buffers, own.cursor, step, rank))


def reduce(gradients: dict[int, int]) -> int:
    return hash(tuple(gradients[rank] for rank in sorted(gradients)))


def optimize(shared: int, reduced: int, step: int) -> int:
    return hash((shared, reduced, step))


class Undisturbed:
    """The same training with nothing going wrong, step by step."""

    def __init__(self, holding: Holding, ranks: int, steps: int) -> None:
        shared = [first_shared(holding, rank) for rank in range(ranks)]
        own = [first_own(rank) for rank in range(ranks)]
        self.shared = [tuple(shared)]  # by applied steps, then by rank
        self.own = [tuple(own)]
        for step in range(steps):
            own = [forward(one, step, rank) for rank, one in enumerate(own)]
            gradients = {r: gradient(shared[r], own[r], step, r) for r in range(ranks)}
            shared = [optimize(one, reduce(gradients), step) for one in shared]
            self.shared.append(tuple(shared))
            self.own.append(tuple(own))
