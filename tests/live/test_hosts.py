"""Ranks of several hosts: one of them dies, or all of a host at once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..harness import evidence
from ..harness import step_records as ledgers
from ..harness.home import until
from ..harness.host_launches import LOOM, Launches
from ..harness.live_training import EPOCHS, EVERY, SAMPLES, SCRIPT, STEPS, WORLD
from ..harness.watched_job import Watched
from . import matrix

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
MIDDLE = STEPS // 2
PATIENCE, LONG = 90.0, 240.0  # seconds
Chains = list[ledgers.Chain]


class Training:
    """A training over hosts, with a plane on the first."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches
        self.watched = Watched(launches)
        self._number = 0

    def run(self, model: str, policy: str, hosts: dict[str, int], *hits: str) -> Path:
        """Start it, hurt it, wait for its end; return the folder of its ledgers."""
        self._number += 1
        self.out = self.launches.folder / f"out-{self._number}"
        self.out.mkdir()
        told = {
            "MODEL": model,
            "OUT": self.out,
            "EVERY": EVERY,
            "PACE": 0.02,
            "HIT": "+".join(hits),
        }
        env = self.watched.variables() | {name: str(value) for name, value in told.items()}
        words = ["--hostfile", str(self.launches.hostfile(**hosts)), "--policy", policy]
        words += ["--nnodes", "2", "--max-restarts", "3"]
        self.launch = self.launches.start("n1", *LOOM, "launch", *words, SCRIPT, env=env)
        if hits:
            until(self._is_live, PATIENCE)
            (self.out / "go").touch()
        return self.out

    def _is_live(self) -> bool:
        assert self.launch.poll() is None, self.launch.communicate()
        found = (self.launches.home / "runs").glob("*/events.jsonl")
        lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
        return any(told["event"] == "watched" and told["is_live"] for told in lines)

    def ends(self) -> list[list[ledgers.Life]]:
        assert self.launch.wait(LONG) == 0, self.launch.communicate()
        return [ledgers.read(self.out, rank) for rank in range(WORLD)]


@pytest.fixture
def training(launches: Launches) -> Iterator[Training]:
    """Give what starts trainings over hosts; the plane goes after them."""
    training = Training(launches)
    yield training
    training.watched.loom("down")


def undisturbed(training: Training, model: str, hosts: dict[str, int]) -> Chains:
    """Return what a training does that nobody hurts."""
    training.run(model, "restart", hosts)
    found = [ledgers.chain(lives) for lives in training.ends()]
    training.launches.home.joinpath("runs").rename(training.launches.folder / "before")
    return found


def test_ranks_of_two_hosts_are_replaced_where_they_were(training: Training) -> None:
    expected = undisturbed(training, "cnn", {"n1": 2, "n2": 1})

    hits = f"2:{MIDDLE}:allreduce:SIGKILL", f"0:{MIDDLE + 8}:behind:SIGKILL"
    training.run("cnn", "live", {"n1": 2, "n2": 1}, *hits)
    ranks = training.ends()

    ledgers.one_attempt(ranks)
    ledgers.same_steps(ranks, expected)
    ledgers.each_sample_once(ranks, expected, SAMPLES, EPOCHS)
    ledgers.survivors_survived(ranks, {0: 1, 2: 1})
    ledgers.generations_grew(ranks, 2, 2)
    ledgers.nothing_lost(ranks)


@pytest.fixture(scope="module")
def calm() -> dict[str, Chains]:
    """Return what undisturbed trainings have done, by their model, once one has run."""
    return {}


def lose_a_host(training: Training, model: str, place: str, calm: dict[str, Chains]) -> int:
    """Have a host die when its rank is at a place; another one is left over.

    Return how often the ranks that are left had to begin again.
    """
    hosts = {"n1": 2, "n2": 1, "n3": 1}
    if model not in calm:
        calm[model] = undisturbed(training, model, hosts)
    expected = calm[model]

    step = MIDDLE if place == "checkpoint" else MIDDLE + 2
    training.run(model, "live", hosts, f"2:{step}:{place}:SIGSTOP")
    until((training.out / "hit-0").exists, LONG)
    training.launches.kill("n2")
    ranks = training.ends()

    for lives, its in zip(ranks, expected, strict=True):
        for step, line in ledgers.chain(lives).items():
            assert line.bits[0] == its[step].bits[0], f"other bits at step {step}"
    ledgers.each_sample_once(ranks, expected, SAMPLES, EPOCHS)
    return max(len(lives) for lives in ranks) - 1


def test_a_host_dies_with_all_it_had(training: Training, calm: dict[str, Chains]) -> None:
    lose_a_host(training, "gpt", "backward", calm)


@pytest.fixture(scope="module")
def samples() -> list[dict[str, object]]:
    return []


@pytest.mark.soak
@pytest.mark.parametrize("model", matrix.MODELS)
@pytest.mark.parametrize("place", matrix.PLACES[:-1])
def test_a_host_dies_anywhere(
    training: Training,
    calm: dict[str, Chains],
    samples: list[dict[str, object]],
    model: str,
    place: str,
) -> None:
    again = lose_a_host(training, model, place, calm)

    samples.append({"model": model, "place": place, "begun_again": again})
    of = len(matrix.MODELS) * len(matrix.PLACES[:-1])
    evidence.write("live-hosts", samples, cases=len(samples), of=of, other_bits=0)
