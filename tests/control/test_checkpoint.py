"""`loom checkpoint`: all ranks save before one and the same step, or it is refused."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..harness.home import until
from ..harness.plane_jobs import LOOM, PATIENCE, Job, Plane, loom

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
    assert "the program has no way to save: add one with run.on('checkpoint', f)" in done.stderr


def test_the_last_finite_checkpoint_stays_while_a_loss_is_nan_and_everybody_says_so(
    plane: Plane, start: Callable[..., Job]
) -> None:
    bad = 23
    job = start("nan.py", WORLD, BAD=bad)
    until(lambda: job.step(0) > bad + 40, PATIENCE)
    folder = Path(os.environ["LOOM_HOME"], "runs", job.id, "checkpoints")

    def on_disk() -> list[int]:
        found = (path.parent.name for path in folder.glob("ckpt_step_*/manifest.json"))
        steps = (name.removeprefix("ckpt_step_") for name in found)
        return sorted(int(step) for step in steps if step.isdecimal())  # the others are drafts

    until(lambda: on_disk()[-1] > bad + 20 and len(on_disk()) <= 3, PATIENCE)
    until(lambda: "NaN" in loom("ls"), PATIENCE)
    shown, told = loom("show", job.id), json.loads(loom("show", job.id, "--json"))
    with plane.database("state") as base:
        words = "SELECT rank, step, reason FROM events WHERE job = ? AND kind = 'loss_not_finite'"
        events = base.execute(words, (job.id,)).fetchall()
    kept = on_disk()
    job.stop()

    rows = {rank: {row.step: row.used for row in job.rows(rank)} for rank in range(WORLD)}
    finite = [step for step in kept if all(rows[rank][step]["weights"] for rank in rows)]
    assert [rows[rank][bad]["loss"] for rank in rows] == [True, False]
    assert [rows[rank][bad + 1]["loss"] for rank in rows] == [False, False]
    assert finite[-1] == 20
    said = f"loss is NaN since step {bad} (rank 1 first)"
    assert told["warning"] == said
    assert f"warning  {said}" in shown
    assert events[-1] == (1, bad, said)
