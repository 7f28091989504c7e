"""A rank's clock is struck: it jumps by an hour, there and back, and nobody minds.

A long form: now and then libfaketime itself has a sleep fail, or the steady clock jump, at the
moment of the step, which no real clock does.
"""

from pathlib import Path

import pytest

from ..harness.chaos_training import all_is_well, same_books
from ..harness.faketime import library
from .conftest import Quiet, Start

pytestmark = [
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.needs("torch"),
    pytest.mark.needs("faketime"),
]
WORLD, STEPS, PACE = 2, 400, 0.08
FAULTS = [
    {"kind": "clock-step", "rank": 0, "by": 3600.0, "lasts": 0.8},
    {"kind": "clock-step", "rank": 1, "by": -3600.0, "lasts": 0.8},
    {"kind": "clock-step", "rank": 1, "by": 3600.0, "lasts": 0.8},
]


def test_a_clock_that_jumps_costs_nothing(start: Start, undisturbed: Quiet, tmp_path: Path) -> None:
    calm = undisturbed(WORLD, STEPS)
    stamp = tmp_path / "stamp"
    stamp.write_text("+0\n")
    faked = {"LD_PRELOAD": library(), "FAKETIME_TIMESTAMP_FILE": stamp}
    exact = {"FAKETIME_NO_CACHE": 1, "FAKETIME_DONT_FAKE_MONOTONIC": 1}
    job = start(WORLD, STEPS, pace=PACE, **faked, **exact).ready()

    report = job.strike(FAULTS, 2.0, calm.digests)
    job.ends()

    all_is_well(report, FAULTS)
    same_books(job.books(), calm.books())
