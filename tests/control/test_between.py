"""Whoever is stopped or killed between prepare and commit: the ranks agree, and nothing is lost."""

import contextlib
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from torchloom.client.errors import PlaneLost

from ..harness import evidence
from ..harness.home import until
from ..harness.plane_jobs import Job, Plane, agree, changes_of, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
FIRST = {"temperature": 0.7, "lr": 0.05}
WORLD = 3
LONGEST = 0.015  # seconds in which a change is decided, more or less
Ask = Callable[[Job, float, str], "Future[dict[str, Any]]"]
PATIENT = 5  # kills after which the plane is started anew, which forgets how often it restarted


@pytest.fixture
def ask() -> Iterator[Callable[..., "Future[dict[str, Any]]"]]:
    """Change something without waiting for what comes of it."""
    pool = ThreadPoolExecutor(1)
    yield lambda job, value, command: pool.submit(job.set, {"lr": value}, id=command)
    pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def prepared(
    plane: Plane, ask: Ask, job: Job, value: float
) -> Iterator[tuple[str, "Future[dict[str, Any]]"]]:
    """Have a change of lr that cannot be decided: the last rank does not answer until the end."""
    command = uuid.uuid4().hex
    with job.stopped(job.world - 1):
        asked = ask(job, value, command)
        until(lambda: (plane.command_state(command) or ("",))[0] == "preparing")
        yield command, asked


def test_a_rank_stopped_for_two_seconds_between_prepare_and_commit_agrees(
    plane: Plane, start: Callable[..., Job], ask: Ask
) -> None:
    job = start("apart.py", WORLD, SYNC=50).ready()

    with contextlib.ExitStack() as held:
        with prepared(plane, ask, job, 0.01) as (_, asked):
            held.enter_context(job.stopped(1))
        time.sleep(2.0)  # as long as it is to be stopped
    outcome = asked.result()

    assert (outcome["state"], len(outcome["ranks"])) == ("applied", WORLD)
    agree(job, FIRST)


def test_a_rank_killed_between_prepare_and_commit_splits_nobody_and_loses_nothing(
    plane: Plane, start: Callable[..., Job], ask: Ask
) -> None:
    job = start("apart.py", WORLD, retries=1).ready()
    first = job.set({"lr": 0.02})["effective_step"]

    with prepared(plane, ask, job, 0.01) as (command, _):
        os.kill(job.pid(1), signal.SIGKILL)
    until(lambda: (plane.command_state(command) or ("",))[0] in ("committed", "applied"), 60.0)
    step = job.audit()[-1]["effective_step"]
    again = [f"{rank}.1" for rank in range(WORLD)]  # a second life of each, in its own file
    until(lambda: all(len(job.lines(name)) > step + 20 for name in again), 60.0)
    job.end()

    before = [[row.used["lr"] for row in job.rows(rank)] for rank in range(WORLD)]
    after = [[row.used["lr"] for row in job.rows(name)] for name in again]
    assert are_one(before)
    assert are_one(after)
    longest = max(before, key=len)
    assert longest[: first + 1] == [0.05] * first + [0.02]
    assert set(longest[first:]) <= {0.02, 0.01}
    assert set(after[0][: min(first, step)]) <= {0.05}
    assert set(after[0][first:step]) <= {0.02}
    assert set(after[0][step:]) == {0.01}


def test_a_rank_that_dies_while_no_plane_is_up_is_known_to_be_gone_afterwards(
    plane: Plane, start: Callable[..., Job]
) -> None:
    job = start("apart.py", WORLD, retries=1).ready()

    loom("down")
    os.kill(job.pid(1), signal.SIGKILL)
    again = [f"{rank}.1" for rank in range(WORLD)]
    until(lambda: all(len(job.lines(name)) > 20 for name in again), 60.0)
    loom("up")
    until(lambda: {(one["generation"], one["state"]) for one in job.ranks()} == {(1, "up")}, 60.0)
    outcome = job.set({"lr": 0.01})
    until(lambda: all(job.rows(name)[-1].used["lr"] == 0.01 for name in again), 60.0)
    job.end()

    first = {[row.used["lr"] for row in job.rows(name)].index(0.01) for name in again}
    assert (outcome["state"], first) == ("applied", {outcome["effective_step"]})
    assert {one["pid"] for one in job.ranks()} == {job.lines(name)[0]["pid"] for name in again}


def are_one(ranks: list[list[float]]) -> bool:
    """Tell whether all used the same in each step, however far each of them came."""
    longest = max(ranks, key=len)
    return all(used == longest[: len(used)] for used in ranks)


def kill_weaver(
    plane: Plane, ask: Ask, job: Job, dice: random.Random, is_held: bool
) -> dict[str, Any]:
    """Change lr and kill the weaver on the way; return what came of it when it is back."""
    value, weaver = dice.uniform(0.001, 0.1), plane.pid("weaver")
    delay = 0.0 if is_held else dice.random() * LONGEST
    if is_held:
        with prepared(plane, ask, job, value) as (command, asked):
            os.kill(weaver, signal.SIGKILL)
    else:
        command = uuid.uuid4().hex
        asked = ask(job, value, command)
        time.sleep(delay)  # the moment of the kill
        os.kill(weaver, signal.SIGKILL)
    with contextlib.suppress(PlaneLost):  # whether it was heard at all, nobody knows
        asked.result()
    killed_at, state = time.monotonic(), plane.command_state(command)
    plane.back("weaver", weaver)
    outcome = job.set({"lr": value}, id=command)  # the same command: done once, whenever
    stored, offers = state[0] if state else None, (plane.command_state(command) or ("", 0))[1]
    return {
        "held": is_held,
        "delay": delay,
        "stored": stored,
        "offers": offers,
        "between": is_held and stored == "preparing" and offers > 1,
        "state": outcome["state"],
        "step": outcome["effective_step"],
        "seconds": round(time.monotonic() - killed_at, 3),
    }


def kill_weavers(plane: Plane, ask: Ask, job: Job, seed: int, wanted: int) -> list[dict[str, Any]]:
    """Kill the weaver until so many were for sure in between; now and then at any moment, too.

    A second offer shows it: ranks had promised to the first one, and dropped it themselves.
    """
    dice, samples = random.Random(seed), list[dict[str, Any]]()
    while sum(one["between"] for one in samples) < wanted:
        at = len(samples)
        assert at < 2 * wanted + 2
        if at % PATIENT == PATIENT - 1:
            loom("down")
            loom("up")
        samples.append(kill_weaver(plane, ask, job, dice, is_held=at % 8 != 1))
    return samples


def test_three_weavers_killed_between_prepare_and_commit_split_nobody(
    plane: Plane, start: Callable[..., Job], ask: Ask
) -> None:
    job = start("apart.py", WORLD, SYNC=50).ready()

    samples = kill_weavers(plane, ask, job, 1, 3)

    assert {one["state"] for one in samples} == {"applied"}
    agree(job, FIRST)
    assert len(changes_of(job.audit())) == len(samples)


@pytest.mark.soak
def test_a_hundred_weavers_killed_between_prepare_and_commit_split_nobody(
    plane: Plane, start: Callable[..., Job], ask: Ask
) -> None:
    job, seed = start("apart.py", WORLD, SYNC=50).ready(), 100

    samples = kill_weavers(plane, ask, job, seed, 100)

    assert {one["state"] for one in samples} == {"applied"}
    agree(job, FIRST)
    assert len(changes_of(job.audit())) == len(samples)
    facts = {"kills": len(samples), "between": 100, "ranks": WORLD, "seed": seed}
    evidence.write("control-weaver-kills", samples, **facts)
