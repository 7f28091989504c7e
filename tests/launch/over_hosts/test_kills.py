"""Whoever of a training over two hosts is killed, whenever: it recovers within its restarts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .killing import PHASES, survive
from .launches import Launches

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # pytest alone, unlike `python -m pytest`, does not

from benchmarks.run import commit, machine  # noqa: E402

pytestmark = pytest.mark.needs("torch")
EVIDENCE = ROOT / "docs/evidence/launch-kills.json"
WARM, COLD = {"LOOM_WARM": "1"}, {"LOOM_WARM": "0"}


@pytest.fixture
def trainings(launches: Launches) -> Iterator[Launches]:
    """Give launches that may leave a warm interpreter on each host; it is ended afterwards."""
    yield launches
    launches.end_zygotes()


def test_ten_kills_are_survived(trainings: Launches) -> None:
    samples = survive(trainings, range(10), 5, WARM)

    assert len(samples) == 10
    assert {sample["phase"] for sample in samples} == set(PHASES)


@pytest.mark.soak
def test_a_hundred_kills_are_survived(trainings: Launches) -> None:
    samples = [{**each, "warm": True} for each in survive(trainings, range(50), 3, WARM)]
    samples += [{**each, "warm": False} for each in survive(trainings, range(50, 100), 3, COLD)]

    assert len(samples) == 100
    facts = {"suite": "launch-kills", "recovered": len(samples), "of": 100, "hosts": 2, "ranks": 4}
    row = {**facts, "machine": machine(), "commit": commit(), "samples": samples}
    EVIDENCE.write_text(json.dumps(row, indent=1) + "\n")
