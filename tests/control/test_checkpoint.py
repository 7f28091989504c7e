"""`loom checkpoint`: all ranks save before one and the same step, or it is refused."""

import json
import subprocess
from collections.abc import Callable

import pytest

from .steering import LOOM, PATIENCE, Job, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2


def test_all_ranks_save_between_the_same_two_steps(start: Callable[..., Job]) -> None:
    job = start("saving.py", WORLD, SAVES=1).ready()

    outcomes = [json.loads(loom("checkpoint", job.id, "--json")) for _ in range(3)]

    steps = [outcome["effective_step"] for outcome in outcomes]
    job.stop()
    saved = [(job.out / f"saved-{rank}").read_text().splitlines() for rank in range(WORLD)]
    assert saved == [[f"{step} {step - 1}" for step in steps]] * WORLD
    assert [command["kind"] for command in job.audit()] == ["checkpoint"] * 3 + ["stop"]


def test_a_program_that_cannot_save_is_not_asked_to(start: Callable[..., Job]) -> None:
    job = start("saving.py", WORLD).ready()

    words = [LOOM, "checkpoint", job.id]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)

    assert (done.returncode, done.stdout) == (2, "")
    assert "the program has no way to save: give it one with run.on('checkpoint', f)" in done.stderr
