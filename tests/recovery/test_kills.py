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

from ..harness import evidence
from ..harness.home import until
from ..harness.plane_jobs import Plane, loom
from . import ledgers
from .proof import EPOCHS, EVERY, LONG, SAMPLES, STEPS, WORLD, Proof

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
MODELS = ("mlp", "cnn", "gpt", "stock")
AT_ONCE = 7  # kills in one run
Chains = list[dict[int, str]]  # the digest behind each step, by rank


@pytest.fixture(scope="module")
def undisturbed(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Chains]:
    """Return the digests of a training that nobody has touched."""
    known: dict[str, Chains] = {}

    def chains(model: str) -> Chains:
        if model not in known:
            proof = Proof(model, tmp_path_factory.mktemp("quiet") / model, retries=0)
            proof.ends()
            known[model] = proof.chains()
            assert [sorted(chain) for chain in known[model]] == [list(range(STEPS))] * WORLD
        return known[model]

    return chains


def holds(proof: Proof, expected: Chains, again: int) -> None:
    """Check a run that was disturbed, by the ledgers of its ranks and the files that it left.

    No more steps may have been done again than were behind the last checkpoint at each kill.
    """
    proof.ends()
    assert proof.chains() == expected
    rows = proof.ledgers()
    resumed = {int(told["generation"]): told for told in ledgers.events(proof.run, "resuming")}
    for lines in rows:
        for generation, first in ledgers.starts(lines).items():
            if generation:  # where nothing was ever saved there is nothing to go on from
                assert first == (resumed.get(generation, {}).get("step") or 0)
        assert len(lines) <= STEPS + again
    whole = Counter(range(SAMPLES))
    assert [ledgers.seen(rows, epoch) for epoch in range(EPOCHS)] == [whole] * EPOCHS


@pytest.mark.parametrize("model", MODELS)
def test_a_rank_killed_behind_a_checkpoint_repeats_no_more_than_was_not_saved(
    model: str, undisturbed: Callable[[str], Chains], tmp_path: Path
) -> None:
    expected = undisturbed(model)
    proof = Proof(model, tmp_path / "job", retries=3, pace=0.1)

    until(lambda: proof.committed() and proof.step() >= EVERY + 2, LONG)
    saved = proof.committed()[-1]
    os.kill(random.choice(proof.ranks()), signal.SIGKILL)
    unsaved = proof.reached() + 1 - saved

    holds(proof, expected, again=max(EVERY, unsaved + 2))
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
            with contextlib.suppress(ProcessLookupError):  # the first takes the others along
                if pid:
                    os.kill(pid, signal.SIGKILL)
        loom("up")
    else:
        plane.back(kind, plane.kill(kind))


def kills(
    model: str, most: int, seed: int, out: Path, plane: Plane
) -> tuple[Proof, list[str], int]:
    """Train, and kill something every now and then; return what, and what that may cost.

    While the plane is down nothing is committed, so that a rank's end costs more then.
    """
    chance = random.Random(seed)
    proof = Proof(model, out, retries=most, pace=0.05, later=0.05)
    until(proof.committed, LONG)
    done: list[str] = []
    again = 0
    while len(done) < most:
        until(lambda: proof.state() == "SUCCEEDED" or proof.ranks(), LONG)
        time.sleep(chance.uniform(0.0, 1.0))  # any instant will do
        if proof.state() == "SUCCEEDED":
            break
        kind = chance.choice(("rank", "rank", "agent", "weaver", "nats", "plane"))
        saved = proof.committed()[-1]
        strike(kind, proof, plane)
        unsaved = proof.reached() + 1 - saved  # now: ranks go on until the very kill
        again += max(EVERY, unsaved + 2) if kind == "rank" else 0
        done.append(kind)
    return proof, done, again


def all_the_same(
    count: int, seed: int, out: Path, plane: Plane, undisturbed: Callable[[str], Chains]
) -> list[dict[str, object]]:
    """Kill so many times, in runs of each model by turns; none of them ends with other bits.

    Return what was killed in each run, where it went on, and how many steps were done again.
    """
    left, number, told = count, 0, list[dict[str, object]]()
    while left:
        model = MODELS[(1 + number) % len(MODELS)]
        proof, done, again = kills(
            model, min(AT_ONCE, left), seed + number, out / f"job-{number}", plane
        )
        holds(proof, undisturbed(model), again)
        steps = [one["step"] for one in ledgers.events(proof.run, "resuming")]
        assert all(step > 0 for step in steps)
        repeated = max(map(len, proof.ledgers())) - STEPS
        told.append({"model": model, "killed": done, "resumed_at": steps, "repeated": repeated})
        left, number = left - len(done), number + 1
    return told


def test_twenty_kills_of_anything_change_no_bit(
    undisturbed: Callable[[str], Chains], plane: Plane, tmp_path: Path
) -> None:
    all_the_same(20, random.randrange(1 << 30), tmp_path, plane, undisturbed)


@pytest.mark.soak
def test_fifty_kills_of_anything_change_no_bit(
    undisturbed: Callable[[str], Chains], plane: Plane, tmp_path: Path
) -> None:
    samples = all_the_same(50, 0, tmp_path, plane, undisturbed)

    facts = {"kills": 50, "seed": 0, "ranks": WORLD, "steps": STEPS, "every_n_steps": EVERY}
    evidence.write("recovery-kills", samples, **facts, other_bits=0)
