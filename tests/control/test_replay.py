"""A generation that begins anew goes through the changes of its job at the same steps."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from torchloom.client import plane as door

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
AHEAD = 400  # steps until a change that is decided now


def planned(job: Job, value: float, at: int) -> None:
    """Have a change decided whose step is still far."""
    outcome = door.ask("set", None, job=job.id, values={"lr": value}, at=at, wait=0)
    until(lambda: state_of(job, outcome["id"])["state"] == "committed", PATIENCE)


def state_of(job: Job, command: str) -> dict[str, Any]:
    return next(one for one in job.audit() if one["id"] == command)


def lived_again(job: Job, beyond: int) -> list[list[float]]:
    """Return the lr of each step of the second lives, once they are past a step."""
    names = [f"{rank}.1" for rank in range(WORLD)]
    until(lambda: all(len(job.lines(name)) > beyond + 20 for name in names), PATIENCE)
    job.end()
    return [[row.used["lr"] for row in job.rows(name)][: beyond + 10] for name in names]


@pytest.mark.parametrize("stepping", ["api", "attached"])
def test_what_was_decided_and_not_reached_when_a_rank_died_acts_at_its_step_afterwards(
    start: Callable[..., Job], stepping: str
) -> None:
    job = start("apart.py", WORLD, retries=1, STEPPING=stepping, SYNC=1).ready()
    far = job.step() + AHEAD

    planned(job, 0.02, far)
    os.kill(job.pid(1), signal.SIGKILL)
    used = lived_again(job, far)

    assert job.step(1) < far
    assert used == [[0.05] * far + [0.02] * 10] * WORLD
    assert [(one["state"], one["generation"]) for one in job.audit()] == [("applied", 1)]


@pytest.mark.parametrize("stepping", ["api", "attached"])
def test_what_was_done_when_a_rank_died_is_done_again_at_the_same_steps(
    start: Callable[..., Job], stepping: str
) -> None:
    job = start("apart.py", WORLD, retries=1, STEPPING=stepping, SYNC=1).ready()

    first, second = (job.set({"lr": value})["effective_step"] for value in (0.02, 0.01))
    os.kill(job.pid(1), signal.SIGKILL)
    used = lived_again(job, second)

    expected = [0.05] * first + [0.02] * (second - first) + [0.01] * 10
    assert used == [expected] * WORLD
    former = [row.used["lr"] for row in job.rows(0)][:second]
    assert former == expected[: len(former)]
