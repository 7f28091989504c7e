"""How outages are measured: a machine that changes its pace is not taken for one, nor hides one."""

import math
import random

import pytest

from .windows import Tick, Window, ratios, verdict, window

STEP, CPU = 0.007, 0.002  # seconds


def ticks(walls: list[float], cpus: list[float]) -> list[Tick]:
    now, used, found = 0.0, 0.0, [Tick(0.0, 0.0, 0.0)]
    for wall, cpu in zip(walls, cpus, strict=True):
        now, used = now + wall, used + cpu
        found.append(Tick(now, used, 2 * used))
    return found


def measured(felt: float, drift: float, noise: float) -> dict[str, dict[str, float]]:
    """Return what is found of twenty outages of 200 steps in each of which steps take longer."""
    chance, quiet, outages = random.Random(3), list[Window](), list[Window]()
    for at in range(41):
        pace = 1 + drift * math.sin(at / 5)
        cost = felt if at % 2 else 1.0
        walls = [STEP * pace * cost * (1 + noise * chance.random()) for _ in range(200)]
        cpus = [CPU * cost * (1 + noise / 10 * chance.random()) for _ in range(200)]
        found = window([ticks(walls, cpus)], 0.0, math.inf)
        (outages if at % 2 else quiet).append(found)
    return verdict(quiet, outages)


def test_a_window_has_the_steps_of_all_ranks_that_end_in_it() -> None:
    ranks = [ticks([1.0, 2.0, 4.0], [0.1, 0.2, 0.3]), ticks([3.0, 9.0], [0.5, 9.0])]

    found = window(ranks, 2.0, 8.0)

    assert (found.steps, found.wall, found.slowest) == (3, 3.0, 4.0)
    assert found.thread == pytest.approx(0.3)
    assert found.process == pytest.approx(2 * 1.0 / 3)


def test_an_outage_is_compared_with_the_times_around_it() -> None:
    slow, slower, slowest = (Window(100, wall, 1.0, 0.1, 0.2) for wall in (1.0, 1.5, 2.0))

    assert ratios(slow, slower, slowest) == {"wall": 1.0, "thread": 1.0, "process": 1.0}


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_a_machine_that_changes_its_pace_is_no_outage(drift: float) -> None:
    found = measured(felt=1.0, drift=drift, noise=0.5)

    assert abs(found["wall"]["outage"] - 1) < 0.01
    assert abs(found["thread"]["outage"] - 1) < 0.001


@pytest.mark.parametrize("felt", [1.05, 1.5])
def test_what_is_felt_is_found_all_the_same(felt: float) -> None:
    found = measured(felt=felt, drift=0.3, noise=0.5)

    assert found["wall"]["outage"] == pytest.approx(felt, abs=0.015)
    assert found["thread"]["outage"] == pytest.approx(felt, abs=0.002)
    assert found["thread"]["quiet"] == pytest.approx(1, abs=0.002)
