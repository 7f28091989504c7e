"""Kill anything, again and again: the run ends with the weights of one that nobody disturbed."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.client import plane as door

from ..control.steering import Plane, loom
from ..living import until
from . import ledgers
from .proof import EPOCHS, EVERY, LONG, SAMPLES, STEPS, WORLD, Proof

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
MODELS = ("mlp", "cnn", "gpt", "stock")


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[dict[int, str]]]:
    """Return the digests of a training that nobody has touched."""
    known: dict[str, list[dict[int, str]]] = {}

    def chains(model: str) -> list[dict[int, str]]:
        if model not in known:
            proof = Proof(model, tmp_path_factory.mktemp("quiet") / model, retries=0)
            proof.ends()
            known[model] = proof.chains()
            assert [sorted(chain) for chain in known[model]] == [list(range(STEPS))] * WORLD
        return known[model]

    return chains


def holds(proof: Proof, expected: list[dict[int, str]], kills: int) -> None:
    """Check a run that was disturbed, by the ledgers of its ranks and the files that it left."""
    proof.ends()
    assert proof.chains() == expected
    rows = proof.ledgers()
    resumed = {int(told["generation"]): told for told in ledgers.events(proof.run, "resuming")}
    for lines in rows:
        for generation, first in ledgers.starts(lines).items():
            if generation:  # where nothing was ever saved there is nothing to go on from
                assert first == (resumed.get(generation, {}).get("step") or 0)
        assert len(lines) <= STEPS + kills * EVERY + kills
    whole = Counter(range(SAMPLES))
    assert [ledgers.seen(rows, epoch) for epoch in range(EPOCHS)] == [whole] * EPOCHS


@pytest.mark.parametrize("model", MODELS)
def test_a_rank_killed_behind_a_checkpoint_repeats_no_more_than_was_not_saved(
    model: str, undisturbed: Callable[[str], list[dict[int, str]]], tmp_path: Path
) -> None:
    expected = undisturbed(model)
    proof = Proof(model, tmp_path / "job", retries=3, pace=0.02)

    until(lambda: proof.committed() and proof.step() >= EVERY + 2, LONG)
    saved = proof.committed()[-1]
    os.kill(random.choice(proof.ranks()), signal.SIGKILL)

    holds(proof, expected, kills=1)
    steps = [told["step"] for told in ledgers.events(proof.run, "resuming")]
    assert len(steps) == 1
    assert steps[0] >= saved > 0


def strike(kind: str, proof: Proof, plane: Plane) -> None:
    """Kill something with -9; what the plane is made of comes back by itself."""
    if kind == "rank":
        with contextlib.suppress(ProcessLookupError, IndexError):  # it may just have ended
            os.kill(random.choice(proof.ranks()), signal.SIGKILL)
    elif kind == "plane":
        found = door.find()
        assert found is not None
        for pid in (found["pid"], *(plane.pid(part) for part in ("weaver", "nats", "agent"))):
            if pid:
                os.kill(pid, signal.SIGKILL)
        loom("up")
    else:
        plane.back(kind, plane.kill(kind))


def kills(model: str, count: int, seed: int, out: Path, plane: Plane) -> tuple[Proof, int]:
    """Train, and kill something every now and then; return how many ranks were among it."""
    chance = random.Random(seed)
    proof = Proof(model, out, retries=count, pace=0.05)
    until(proof.committed, LONG)
    hit = 0
    for _ in range(count):
        until(lambda: proof.state() == "SUCCEEDED" or proof.ranks(), LONG)
        time.sleep(chance.uniform(0.0, 1.0))  # any instant will do
        if proof.state() == "SUCCEEDED":
            break
        kind = chance.choice(("rank", "rank", "agent", "weaver", "nats", "plane"))
        strike(kind, proof, plane)
        hit += kind == "rank"
    return proof, hit


def test_whatever_is_killed_the_run_ends_with_the_weights_of_one_that_was_left_alone(
    undisturbed: Callable[[str], list[dict[int, str]]], plane: Plane, tmp_path: Path
) -> None:
    expected = undisturbed("cnn")

    proof, hit = kills("cnn", 8, random.randrange(1 << 30), tmp_path / "job", plane)

    holds(proof, expected, hit)
    assert all(told["step"] > 0 for told in ledgers.events(proof.run, "resuming"))


@pytest.mark.soak
def test_fifty_kills_of_anything_change_no_bit(
    undisturbed: Callable[[str], list[dict[int, str]]], plane: Plane, tmp_path: Path
) -> None:
    left, round_ = 50, 0
    while left > 0:
        model = MODELS[round_ % len(MODELS)]
        proof, hit = kills(model, min(left, 12), round_, tmp_path / f"job-{round_}", plane)
        holds(proof, undisturbed(model), hit)
        left -= min(left, 12)
        round_ += 1
