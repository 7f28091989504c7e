"""What the control bench makes of the ranks' files, and of their clocks."""

import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

pytest.importorskip("msgspec")

from benchmarks.control import (  # noqa: E402
    Change,
    judged,
    must_agree,
    slowest,
    slowest_within,
)
from benchmarks.figure import CannotMeasure  # noqa: E402

MS = 1_000_000
STEADY = [number * 5 * MS for number in range(40)]


def test_a_change_is_late_by_what_it_took_beyond_the_steps_that_the_design_gives_it() -> None:
    seen = judged([STEADY, STEADY], [Change(100 * MS, 127 * MS, 0.1)])

    assert seen.late == [7.0]  # K is 2 with steps of 5 ms, so 20 of its 27 ms are the design's
    assert (seen.slowest, seen.calm) == ([1.0], [1.0])


def test_the_slowest_step_is_that_of_any_rank_which_touches_the_time() -> None:
    stalled = [*STEADY[:21], *(at + 8 * MS for at in STEADY[21:])]

    assert slowest([STEADY, stalled], 101 * MS, 102 * MS) == 13 * MS
    assert slowest([STEADY, stalled], 80 * MS, 99 * MS) == 5 * MS


def test_a_slow_step_in_which_a_command_ends_is_none_of_the_calm_after_it() -> None:
    stalled = [*STEADY[:21], *(at + 8 * MS for at in STEADY[21:])]  # from 100 to 113 ms

    seen = judged([stalled], [Change(80 * MS, 101 * MS, 0.1), Change(150 * MS, 160 * MS, 0.2)])

    assert slowest_within([stalled], 101 * MS, 150 * MS) == 5 * MS
    assert (seen.slowest, seen.calm) == ([13 / 5, 1.0], [1.0, 1.0])


def test_ranks_that_change_apart_or_lose_a_value_are_no_measurement() -> None:
    changes = [Change(0, 1, 0.2)]

    must_agree([{"used": [0.1, 0.2, 0.2]}, {"used": [0.1, 0.2, 0.2]}], changes)
    with pytest.raises(CannotMeasure, match="same steps"):
        must_agree([{"used": [0.1, 0.2, 0.2]}, {"used": [0.1, 0.1, 0.2]}], changes)
    with pytest.raises(CannotMeasure, match="0 changes were used of 1"):
        must_agree([{"used": [0.1, 0.1]}], changes)


@pytest.mark.needs("torch")
def test_what_a_step_costs_is_without_what_its_clock_costs() -> None:
    from benchmarks.control_steps import Spent

    done, ends = [], threading.Event()
    thread = threading.Thread(target=ends.wait, name="loom-link")
    thread.start()
    spent = Spent()
    for step in range(200):
        spent.is_blank = not spent.is_blank
        spent.on(sum, range(100_000 if step < 100 else 0))
        done.append(spent.since_last(100) if step % 100 == 99 else 0.0)
    ends.set()
    thread.join()

    busy, idle = done[99], done[199]
    assert idle < 0.1e6 < 0.5e6 < busy  # nanoseconds a step
