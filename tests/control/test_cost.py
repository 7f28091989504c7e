"""Being watched and steered costs no collective: the ranks count what torch sends for them."""

import json
from collections.abc import Callable

import pytest

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
STEPS = 300


def made(job: Job) -> list[dict[str, int]]:
    """Return what each rank has made by torch's own count, once it has come to its end."""
    paths = [job.out / f"made-{rank}" for rank in range(WORLD)]
    until(lambda: all(path.exists() for path in paths), PATIENCE)
    job.gone()
    return [json.loads(path.read_text()) for path in paths]


def test_no_collective_more_is_made_with_a_threadlet_and_while_it_is_steered(
    start: Callable[..., Job],
) -> None:
    alone = made(start("ddp.py", WORLD, STEPS=STEPS, LOOM_ATTACH=0))
    steered = start("ddp.py", WORLD, STEPS=STEPS, PAUSE=0.01).ready()
    outcomes = [steered.set({"lr": 0.01 * (at + 1)}) for at in range(3)]
    watched = made(steered)

    assert [one["state"] for one in outcomes] == ["applied"] * 3
    assert {row.used["lr"] for row in steered.rows(0)} == {0.05, 0.01, 0.02, 0.03}
    assert alone[0]["collectives"] >= STEPS
    assert watched == alone
