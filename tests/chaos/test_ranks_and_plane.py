"""Ranks and parts of the plane are struck one after the other: nothing is lost, no bit is other."""

from pathlib import Path

import pytest

from ..harness.chaos_training import UNSEEN, all_is_well, same_books
from .conftest import Quiet, Start
from .mounts import tmpfs

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD, STEPS, PACE = 4, 450, 0.08
FAULTS = [  # whoever is hit next was left alone for a while
    {"kind": "kill", "rank": 1},
    {"kind": "kill-weaver"},
    {"kind": "kill", "rank": 0},
    {"kind": "stop", "rank": 2, "lasts": 0.5},
    {"kind": "kill", "rank": 3},
    {"kind": "kill-nats"},
    {"kind": "raise", "rank": 2},
    {"kind": "corrupt-shard", "lasts": 0.5},
    {"kind": "kill", "rank": 2},
    {"kind": "kill-agent"},
]


def test_ten_faults_of_seven_kinds_are_recovered_from(start: Start, undisturbed: Quiet) -> None:
    calm = undisturbed(WORLD, STEPS)
    job = start(WORLD, STEPS, pace=PACE).ready()

    report = job.strike(FAULTS, 1.2, calm.digests)
    all_is_well(report, FAULTS)
    job.ends()

    last = job.judged(calm.digests)
    all_is_well(last, FAULTS, UNSEEN)
    assert last["exact"] is True
    same_books(job.books(), calm.books())


@pytest.mark.needs("mount")
def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    start: Start, undisturbed: Quiet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [{"kind": "disk-full", "lasts": 1.0}, {"kind": "kill", "rank": 1}]
    calm = undisturbed(2, 150)
    with tmpfs(tmp_path / "small", "16m") as folder:
        monkeypatch.setenv("LOOM_CHECKPOINTS", str(folder))
        job = start(2, 150, pace=PACE).ready()

        report = job.strike(faults, 2.0, calm.digests)
        job.ends()

    all_is_well(report, faults)
    same_books(job.books(), calm.books())
