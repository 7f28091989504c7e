"""Where ranks are hit, which, and in what training: all of it, and a cover of all pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..harness.live_training import EVERY, STEPS

PLACES = (
    "data",
    "forward",
    "backward",
    "allreduce",
    "behind",
    "ahead",
    "optimizer",
    "after",
    "checkpoint",
    "recovery",
)
VICTIMS = ("rank 0", "another", "the source", "two at once")
MODELS = ("mlp", "cnn", "gpt")
SOON = 30  # milliseconds after a hit: its recovery is under way
AT_ONCE = STEPS // EVERY - 1  # cases in one run, some steps apart


@dataclass(frozen=True)
class Case:
    """One way to be hurt."""

    model: str
    place: str
    victim: str

    def hits(self, number: int) -> list[str]:
        """Return the hits of it as the so manieth case of a run."""
        begin = (number + 1) * EVERY  # a checkpoint lies before it
        if self.place == "recovery":
            return [_kill(1, begin + 2, "forward"), *self._recovery()]
        step = begin if self.place == "checkpoint" else begin + 2
        match self.victim:
            case "rank 0":
                return [_kill(0, step, self.place)]
            case "another":
                return [_kill(1, step, self.place)]
            case "the source":  # of the recovery, in the middle of it
                return [_kill(2, step, self.place), _kill(0, SOON, "recovery")]
            case _:
                return [_kill(0, step, self.place), _kill(2, step, self.place)]

    def _recovery(self) -> list[str]:
        match self.victim:
            case "rank 0":
                return [_kill(0, SOON, "recovery")]
            case "another":  # the newcomer itself
                return [_kill(1, 0, "recovery")]
            case "the source":
                return [_kill(0, 3 * SOON, "recovery")]
            case _:
                return [_kill(0, SOON, "recovery"), _kill(1, 0, "recovery")]


def _kill(rank: int, step: int, place: str) -> str:
    return f"{rank}:{step}:{place}:SIGKILL"


def everything() -> list[Case]:
    """Return every victim at every place of every training."""
    return [Case(*words) for words in product(MODELS, PLACES, VICTIMS)]


def pairs() -> list[Case]:
    """Return a third of it, with every two of (training, place, victim) in it once or more."""
    every = product(enumerate(PLACES), enumerate(VICTIMS))
    return [Case(MODELS[(i + j) % len(MODELS)], place, who) for (i, place), (j, who) in every]


def runs(cases: list[Case]) -> Iterator[list[Case]]:
    """Share cases out to runs of one training each."""
    for model in MODELS:
        of_it = [case for case in cases if case.model == model]
        for first in range(0, len(of_it), AT_ONCE):
            yield of_it[first : first + AT_ONCE]


def hits_of(cases: list[Case]) -> list[str]:
    return [hit for number, case in enumerate(cases) for hit in case.hits(number)]
