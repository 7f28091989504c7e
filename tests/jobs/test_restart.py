"""A weaver killed at any instant, again and again, while jobs are submitted, started and end."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from torchloom.client.errors import NoPlane, PlaneLost

from ..harness.home import until
from ..harness.plane_jobs import Plane

pytestmark = pytest.mark.process
LONG = 300.0  # seconds, for loaded machines


class Submitter(threading.Thread):
    """Asks for jobs, each until it is acknowledged: its key says that it is the same one."""

    def __init__(self, submit: Callable[..., dict[str, Any]], count: int) -> None:
        super().__init__()
        self._submit = submit
        self._count = count
        self.acknowledged: dict[str, tuple[str, int]] = {}  # job and workers by key

    def run(self) -> None:
        for number in range(self._count):
            key, workers = f"key-{number}", 1 + number % 3
            while key not in self.acknowledged:
                with contextlib.suppress(PlaneLost, NoPlane):
                    said = self._submit("note", workers, 0.2 * (number % 2), key=key)
                    self.acknowledged[key] = (said["id"], workers)


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        pytest.param(12, 4, id="short"),
        pytest.param(120, 40, id="long", marks=pytest.mark.soak),
    ],
)
def test_no_job_is_lost_and_none_starts_twice_however_often_the_weaver_is_killed(
    plane: Plane,
    submit: Callable[..., dict[str, Any]],
    starts: Callable[[], list[tuple[str, int]]],
    count: int,
    kills: int,
) -> None:
    chance = random.Random()
    submitter = Submitter(submit, count)
    submitter.start()

    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 1.5))  # any instant will do
        plane.back("weaver", plane.kill("weaver"))
    submitter.join(LONG)

    jobs = dict(submitter.acknowledged.values())
    assert len(jobs) == count
    until(lambda: states(plane) == dict.fromkeys(jobs, "COMPLETED"), LONG)
    expected = Counter((job, rank) for job, workers in jobs.items() for rank in range(workers))
    assert Counter(starts()) == expected
    with plane.database("state") as base:
        assert base.execute("SELECT * FROM placements").fetchall() == []


def states(plane: Plane) -> dict[str, str]:
    with plane.database("state") as base:
        return dict(base.execute("SELECT id, state FROM jobs").fetchall())
