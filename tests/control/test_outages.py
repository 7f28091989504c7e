"""Weaver and NATS are killed, stopped and cut off: training feels nothing, and nothing is lost."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from torchloom.client import plane as door

from ..harness import evidence
from ..harness.home import allowed, until
from ..harness.metric_rows import shown
from ..harness.plane_jobs import PATIENCE, Job, Plane, changes_of
from .windows import Tick, ratios, verdict, window

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
QUIET = 150  # steps before and behind each outage that it is compared with
LONGEST = 1.0  # seconds that no step may wait
FELT = 1.03  # of what steps take around an outage, that they may take in it
NOISE = 0.05  # that quiet times may differ by; on a machine with more of it nothing is measured
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
        time.sleep(0.02)  # it is to take the connections away, not the machine


OUTAGES: dict[str, Outage] = {
    "weaver killed": killed("weaver"),
    "nats killed": killed("nats"),
    "agent killed": killed("agent"),
    "weaver stopped": stopped("weaver"),
    "nats stopped": stopped("nats"),
    "cut off": cut_off,
}


Span = tuple[float, float]  # from when to when, by the ranks' own clock


def quiet(job: Job, steps: int) -> Span:
    """Let the ranks take some steps; return when that was."""
    began = time.monotonic()
    while not all(job.step(rank) >= 0 for rank in range(WORLD)):
        time.sleep(0.05)
    goal = job.step() + steps
    while job.step() < goal:
        time.sleep(0.05)  # asking all the time takes the machine from them
    return began, time.monotonic()


def suffer(plane: Plane, job: Job, name: str, seconds: float) -> dict[str, Any]:
    """Have an outage and then a change of lr; return when, by the ranks' own clock."""
    before, began = job.step(), time.monotonic()
    OUTAGES[name](plane, seconds)
    ended = time.monotonic()
    until(plane.is_whole, PATIENCE)
    outcome = job.set({"lr": 0.01 + before / 1e6})
    return {"outage": name, "span": (began, ended), "command": outcome["id"]}


def suffer_all(
    plane: Plane, job: Job, names: list[str], seconds: float, steps: int
) -> tuple[list[Span], list[dict[str, Any]]]:
    """Have one outage after the other with quiet times around each; return when all of it was."""
    spans, suffered = [quiet(job, steps)], []
    for name in names:
        suffered.append(suffer(plane, job, name, seconds))
        job.passes(20)  # what was kept meanwhile is told and stored
        spans.append(quiet(job, steps))
    return spans, suffered


def ticks(job: Job) -> list[list[Tick]]:
    """Return when each step of each rank ended and what CPU time it used, by its own file."""
    texts = [(job.out / f"cpu-{rank}").read_text() for rank in range(WORLD)]
    return [[Tick(*map(float, line.split())) for line in text.splitlines()] for text in texts]


def stored(plane: Plane, job: Job) -> dict[tuple[str, int, int], float]:
    """Return every point of what the program logged, as the database has it."""
    with plane.database("records") as base:
        base.execute("BEGIN")  # all of it at one moment
        found = shown(base)
    return {
        (name, rank, step): point.value
        for (its, name, rank, _, step), point in found.items()
        if its == job.id and name in ("loss", "half")
    }


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


def check(plane: Plane, job: Job, suffered: list[dict[str, Any]]) -> None:
    """Compare what the plane has with what the ranks wrote."""
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


def costs(
    job: Job, spans: list[Span], suffered: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]]:
    """Return each outage with the times around it, and what they say together."""
    ranks = ticks(job)
    around = [window(ranks, *span) for span in spans]
    outages = [window(ranks, *one["span"]) for one in suffered]
    samples = [
        {
            "outage": one["outage"],
            "seconds": one["span"][1] - one["span"][0],
            "before": asdict(before),
            "during": asdict(during),
            "after": asdict(after),
            "ratio": ratios(before, during, after),
        }
        for one, before, during, after in zip(
            suffered, around[:-1], outages, around[1:], strict=True
        )
    ]
    assert max(one.slowest for one in outages) < allowed(LONGEST)
    return samples, verdict(around, outages)


def test_outages_of_the_plane_are_not_felt_by_training_and_lose_nothing(
    plane: Plane, start: Callable[..., Job]
) -> None:
    job = start("logged.py", WORLD).ready()

    spans, suffered = suffer_all(plane, job, list(OUTAGES), 2.0, QUIET)

    check(plane, job, suffered)
    _, found = costs(job, spans, suffered)
    assert found["thread"]["outage"] < 1.5  # a rank that asks or tries again would use far more


@pytest.mark.soak
def test_twenty_outages_of_ten_seconds_are_not_felt_by_training_and_lose_nothing(
    plane: Plane, start: Callable[..., Job]
) -> None:
    job = start("logged.py", WORLD).ready()
    names = [list(OUTAGES)[at % len(OUTAGES)] for at in range(20)]

    spans, suffered = suffer_all(plane, job, names, 10.0, 4 * QUIET)

    check(plane, job, suffered)
    samples, found = costs(job, spans, suffered)
    evidence.write("control-outages", samples, of=20, points_lost=0, ranks=WORLD, ratios=found)
    noise = found["wall"]["noise"]
    assert noise < NOISE, f"quiet times differ by {noise:.1%}: this machine is too busy to tell"
    assert max(found["wall"]["outage"], found["thread"]["outage"]) <= FELT
