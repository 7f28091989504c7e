"""The hits are what they are said to be: each happens, once, and a restart mends what it broke."""

from pathlib import Path

import pytest

from ..harness import step_records as ledgers
from ..harness.live_training import EPOCHS, SAMPLES, Proof
from . import matrix
from .conftest import Quiet

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def test_every_place_is_reached_and_a_restart_ends_with_the_same_bits(
    undisturbed: Quiet, tmp_path: Path
) -> None:
    expected = undisturbed("cnn")
    cases = [matrix.Case("cnn", place, "another") for place in matrix.PLACES[3:10]]

    proof = Proof("cnn", tmp_path / "job", matrix.hits_of(cases), "restart", retries=20)
    proof.over()

    ranks = proof.ranks()
    assert all(map(proof.was_hit, range(len(proof.hits))))
    ledgers.same_steps(ranks, expected)
    ledgers.each_sample_once(ranks, expected, SAMPLES, EPOCHS)
    with pytest.raises(AssertionError):
        ledgers.one_attempt(ranks)
    with pytest.raises(AssertionError):
        ledgers.survivors_survived(ranks, proof.deaths())
