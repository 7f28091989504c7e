"""Changes that are taken back, by hand or by a guard, and a stop at a step: by the ranks' files."""

import json
from collections.abc import Callable

import pytest

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2


def used(job: Job, rank: int, knob: str = "lr") -> list[float]:
    return [row.used[knob] for row in job.rows(rank)]


def test_a_change_is_undone_from_the_command_line_at_one_step_on_all_ranks(
    start: Callable[..., Job],
) -> None:
    job = start("apart.py", WORLD, SYNC=1).ready()

    loom("set", job.id, "lr=0.02", "temperature=0.5")
    said = loom("set", job.id, "--undo")
    job.stop()

    changed, undone = (one["effective_step"] for one in job.audit()[:2])
    expected = [0.05] * changed + [0.02] * (undone - changed)
    for rank in range(WORLD):
        assert used(job, rank)[:undone] == expected
        assert set(used(job, rank)[undone:]) == {0.05}
        assert used(job, rank, "temperature")[undone - 1 : undone + 1] == [0.5, 0.7]
    assert f"at step {undone} on ranks 0-1" in said


def test_a_guard_takes_a_change_back_though_the_weaver_is_killed_meanwhile(
    plane: Plane, start: Callable[..., Job]
) -> None:
    job = start("apart.py", WORLD, SYNC=1, LOSS="temperature").ready()
    job.logged("loss")

    loom("set", job.id, "lr=0.2", "--guard", "loss>1.2x", "--for", "1000000")
    plane.back("weaver", plane.kill("weaver"))
    loom("set", job.id, "temperature=0.9")
    until(lambda: len(job.audit()) > 2, PATIENCE)
    until(lambda: job.audit()[2]["state"] == "applied", PATIENCE)
    job.stop()

    changed, _, undone = (one["effective_step"] for one in job.audit()[:3])
    for rank in range(WORLD):
        assert used(job, rank)[:undone] == [0.05] * changed + [0.2] * (undone - changed)
        assert set(used(job, rank)[undone:]) == {0.05}
    assert job.audit()[2]["author"] == "guard"
    assert job.audit()[0]["guard"]["state"] == "reverted"


@pytest.mark.parametrize("stepping", ["api", "attached"])
def test_a_job_is_stopped_before_one_step_from_the_command_line(
    start: Callable[..., Job], stepping: str
) -> None:
    job = start("apart.py", WORLD, SYNC=1, STEPPING=stepping).ready()
    last = job.step() + 1000

    said = loom("stop", job.id, "--at", str(last), "--no-wait")
    job.gone()
    shown = json.loads(loom("ls", "--json"))[0]

    assert said.startswith((f"will stop at step {last}", f"stopped at step {last}"))
    assert [job.step(rank) for rank in range(WORLD)] == [last - 1] * WORLD
    assert (shown["id"], shown["state"]) == (job.id, "COMPLETED")
    assert (shown["step"], shown["world_size"]) == (last, WORLD)
