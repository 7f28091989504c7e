"""Strikes at clocks: a process under libfaketime sees its time jump and come back."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.chaos.faults import actions
from torchloom.chaos.faults.actions import NotPossible
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Strike

from ...harness.faketime import library
from .standins import StandIns, python

Make = Callable[..., StandIns]
TELLS = """
import sys, time
for _ in sys.stdin:
    print(time.time(), flush=True)
"""
STEADY = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def ask(one: "subprocess.Popen[bytes]") -> float:
    """Return how far a process' clock is from ours."""
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.write(b"\n")
    one.stdin.flush()
    return float(one.stdout.readline()) - time.time()


def faked(path: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that reads its time from a file."""
    told = {"LD_PRELOAD": str(library()), "FAKETIME_NO_CACHE": "1"}
    return {**os.environ, **told, "FAKETIME_TIMESTAMP_FILE": str(path), **more}


@pytest.mark.process
@pytest.mark.needs("faketime")
@pytest.mark.parametrize("text", ["+0\n", None])
def test_a_clock_jumps_and_is_put_right(text: str | None, standins: Make, tmp_path: Path) -> None:
    path, job = tmp_path / "clock", standins()
    if text is not None:
        path.write_text(text)
    one = job.start(0, *python(TELLS), stdin=-1, stdout=-1, env=faked(path, **STEADY))
    fault = Fault(0.0, "clock-step", by=7200.0)
    ask(one)  # it is up, with its library
    actions.check([fault], job.victim)
    aim = actions.aim(fault, job.victim)
    assert aim is not None
    assert aim.undo is not None

    told = actions.strike(Strike(0, "clock-step", 0.0), aim)
    during = ask(one)
    actions.undo(aim.undo)
    after = ask(one)

    assert (told.outcome, aim.target.what, aim.target.rank) == ("struck", "clock", 0)
    assert 3600 < during < 10800
    assert abs(after) < 1800


@pytest.mark.process
@pytest.mark.needs("faketime")
def test_a_rank_whose_steady_clock_would_jump_is_refused(standins: Make, tmp_path: Path) -> None:
    path, job = tmp_path / "clock", standins()
    path.write_text("+0\n")
    ask(job.start(0, *python(TELLS), stdin=-1, stdout=-1, env=faked(path)))

    with pytest.raises(NotPossible, match="-e FAKETIME_DONT_FAKE_MONOTONIC=1"):
        actions.check([Fault(0.0, "clock-step")], job.victim)


def test_a_rank_with_the_machines_own_clock_is_refused(standins: Make) -> None:
    job = standins(ranks=2)

    with pytest.raises(NotPossible, match="no rank of train-a is running under libfaketime"):
        actions.check([Fault(0.0, "clock-step")], job.victim)
    with pytest.raises(NotPossible, match="rank 1 is not running under libfaketime"):
        actions.check([Fault(0.0, "clock-step", rank=1)], job.victim)
