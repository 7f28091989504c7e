"""What was changed while a job ran is changed again, at the same steps, when it starts again."""

import os
import signal
from pathlib import Path

import pytest

from torchloom.client import plane as door

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Plane
from . import ledgers
from .proof import EVERY, LONG, STEPS, Proof

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def test_steps_that_are_repeated_use_what_was_set_for_them(
    plane: Plane, warm: None, tmp_path: Path
) -> None:
    proof = Proof("mlp", tmp_path / "job", retries=2, pace=0.2)
    until(lambda: proof.committed() and proof.step() >= EVERY, LONG)
    before = proof.committed()[-1]

    said = door.ask("set", None, job=proof.id, values={"lr": 0.01}, wait=PATIENCE)
    changed = said["effective_step"]
    until(lambda: proof.step() >= changed + 1, LONG)
    os.kill(proof.ranks()[1], signal.SIGKILL)
    proof.ends()

    (again,) = ledgers.events(proof.run, "resuming")
    assert again["step"] >= before
    for lines in proof.ledgers():
        ledgers.chain(lines)  # what was repeated had the same weights
        assert all(line.rate == (0.05 if line.step < changed else 0.01) for line in lines)
        assert {line.step for line in lines} == set(range(STEPS))
