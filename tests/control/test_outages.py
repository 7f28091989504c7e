"""Weaver and NATS are killed, stopped and cut off: training feels nothing, and nothing is lost."""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from torchloom.client import plane as door

from ..living import until
from . import evidence
from .steering import PATIENCE, Job, Plane, changes_of

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
QUIET = 150  # steps before each outage that it is compared with
LONGEST = 1.0  # seconds that no step may wait
Outage = Callable[[Plane, float], None]


def killed(part: str) -> Outage:
    def act(plane: Plane, seconds: float) -> None:
        plane.back(part, plane.kill(part))

    return act


def stopped(part: str) -> Outage:
    def act(plane: Plane, seconds: float) -> None:
        pid = plane.kill(part, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    return act


def cut_off(plane: Plane, seconds: float) -> None:
    """Break every connection to NATS as soon as it is made, for a while."""
    found = door.find()
    assert found is not None
    port, deadline = found["nats"].rpartition(":")[2], time.monotonic() + seconds
    while time.monotonic() < deadline:
        subprocess.run(
            ["ss", "-K", "dst", "127.0.0.1", "dport", "=", f":{port}"],
            capture_output=True,
            check=True,
        )


OUTAGES: dict[str, Outage] = {
    "weaver killed": killed("weaver"),
    "nats killed": killed("nats"),
    "agent killed": killed("agent"),
    "weaver stopped": stopped("weaver"),
    "nats stopped": stopped("nats"),
    "cut off": cut_off,
}


def suffer(plane: Plane, job: Job, name: str, seconds: float) -> dict[str, Any]:
    """Have a quiet time, an outage and a change of lr; return when, by the ranks' own clock."""
    quiet = time.monotonic()
    job.passes(QUIET)
    before, began = job.step(), time.monotonic()
    OUTAGES[name](plane, seconds)
    ended = time.monotonic()
    until(plane.is_whole, PATIENCE)
    outcome = job.set({"lr": 0.01 + before / 1e6})
    times = {"quiet": quiet, "began": began, "ended": ended}
    return {"outage": name, **times, "command": outcome["id"]}


def step_times(job: Job, began: float = 0.0, ended: float = float("inf")) -> list[float]:
    """Return how long the steps of all ranks took that ended in this time."""
    times = [[row.time for row in job.rows(rank)] for rank in range(WORLD)]
    return [b - a for each in times for a, b in pairwise(each) if began <= b < ended]


def stored(plane: Plane, job: Job) -> dict[tuple[str, int, int], float]:
    """Return every point of what the program logged, as the database has it."""
    words = (
        "select s.name, s.rank, m.step, m.value from metrics m join series s on s.id = m.series"
        " where s.job = ? and s.name in ('loss', 'half')"
    )
    with plane.database("records") as base:
        return {(name, rank, step): v for name, rank, step, v in base.execute(words, (job.id,))}


def logged(job: Job) -> dict[tuple[str, int, int], float]:
    """Return every point as the ranks wrote it themselves."""
    return {
        (name, rank, row.step): value
        for rank in range(WORLD)
        for row in job.rows(rank)
        for name, value in row.used.items()
    }


def places(plane: Plane, job: Job) -> set[tuple[str, str]]:
    """Return which device has which of the job's ranks, by the database."""
    with plane.database("state") as base:
        found = base.execute(
            "select device, process from drmap where process like ?", (f"{job.id}%",)
        )
        return set(found.fetchall())


def check(plane: Plane, job: Job, suffered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare what the plane has with what the ranks wrote; return what the outages cost."""
    devices = {
        (f"{os.uname().nodename}/cpu/{rank}", f"{job.id}/logged/{rank}") for rank in range(2)
    }
    assert places(plane, job) == devices
    job.stop()
    written = logged(job)
    until(lambda: len(stored(plane, job)) >= len(written), PATIENCE)

    assert stored(plane, job) == written
    audit = job.audit()
    assert [one["id"] for one in audit if one["kind"] == "knob"] == [o["command"] for o in suffered]
    assert [one["number"] for one in audit] == list(range(1, len(audit) + 1))
    assert {one["state"] for one in audit} == {"applied"}
    assert [len(one["ranks"]) for one in audit] == [WORLD] * len(audit)
    assert len(changes_of(audit)) == len(suffered)
    costs = [cost(job, one) for one in suffered]
    assert max(one["slowest"] for one in costs) < LONGEST
    return costs


def cost(job: Job, one: dict[str, Any]) -> dict[str, Any]:
    """Return how long steps took right before an outage and in it: recorded, not judged."""
    before = statistics.median(step_times(job, one["quiet"], one["began"]))
    during = step_times(job, one["began"], one["ended"])
    middle = statistics.median(during)
    return {
        "outage": one["outage"],
        "seconds": round(one["ended"] - one["began"], 3),
        "before": round(before, 6),
        "during": round(middle, 6),
        "ratio": round(middle / before, 4),
        "slowest": round(max(during), 6),
    }


def test_outages_of_the_plane_are_not_felt_by_training_and_lose_nothing(
    plane: Plane, start: Callable[..., Job]
) -> None:
    job = start("logged.py", WORLD).ready()

    suffered = [suffer(plane, job, name, 2.0) for name in OUTAGES]

    check(plane, job, suffered)


@pytest.mark.soak
def test_twenty_outages_of_ten_seconds_are_not_felt_by_training_and_lose_nothing(
    plane: Plane, start: Callable[..., Job]
) -> None:
    job = start("logged.py", WORLD).ready()
    names = [list(OUTAGES)[at % len(OUTAGES)] for at in range(20)]

    suffered = [suffer(plane, job, name, 10.0) for name in names]

    costs = check(plane, job, suffered)
    ratio = statistics.median(one["ratio"] for one in costs)
    facts = {"of": 20, "points_lost": 0, "ranks": WORLD, "median_ratio": ratio}
    evidence.write("control-outages", costs, **facts)
