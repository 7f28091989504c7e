"""Ready-made training under a plane: its learning rate changed while it runs, to the last bit."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door
from torchloom.errors import LoomError

from ...harness.forked_ranks import Zygote
from ...harness.home import processes_of, until
from ...harness.plane_jobs import PATIENCE, Plane, loom
from .conftest import SCRIPTS, rows, steps
from .jobs import words
from .test_train import by_hand

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
HYPER: dict[str, Any] = {"batch_size": 8, "epochs": 100_000, "lr": 0.1, "accumulate": 1}
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3, "clip": 0.5}


class Job:
    """A ready-made training under `loom run`."""

    def __init__(self, told: str, out: Path) -> None:
        variables = ("-e", f"LOOM_JOB_SPEC={told.replace('$', '$$')}", "-e", f"OUT={out}")
        line = ("run", "--json", "-n", str(WORLD), *variables, "-m", "torchloom.worker.train")
        self.id: str = json.loads(loom(*line))["id"]
        self.out = out

    def ready(self, least: int = 3) -> None:
        """Come back when all ranks have taken steps, and the plane knows their knobs."""

        def offered() -> bool:
            with contextlib.suppress(LoomError, KeyError, OSError):  # until the plane knows of both
                knobs = {one["name"]: one for one in door.ask("knobs", job=self.id)}
                return len(set(knobs["lr"]["ranks"])) == WORLD and steps(self.out, WORLD) >= least
            return False

        until(offered, PATIENCE)

    def passes(self, more: int) -> None:
        goal = steps(self.out, WORLD) + more
        until(lambda: steps(self.out, WORLD) >= goal, PATIENCE)

    def set(self, **values: Any) -> dict[str, Any]:
        outcome: dict[str, Any] = door.ask("set", None, job=self.id, values=values, wait=PATIENCE)
        return outcome

    def stop(self) -> int:
        outcome = door.ask("stop", None, job=self.id, wait=PATIENCE)
        until(lambda: not processes_of(self.id), PATIENCE)
        step: int = outcome["effective_step"]
        return step

    def end(self) -> None:
        if processes_of(self.id):
            loom("stop", "--now", self.id)


@pytest.fixture
def start(plane: Plane, tmp_path: Path) -> Iterator[Any]:
    """Start jobs in a folder that has a module of the user's own."""
    shutil.copy(SCRIPTS / "mine.py", "mine.py")
    jobs: list[Job] = []

    def begin(told: str) -> Job:
        out = tmp_path / f"job-{len(jobs)}"
        out.mkdir()
        jobs.append(Job(told, out))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


def test_a_learning_rate_changed_live_acts_as_if_it_were_written_in(
    start: Any, zygote: Zygote, table: Path, tmp_path: Path
) -> None:
    hyper = {**HYPER, **SGD}
    job = start(words(hyper, model="module:mine.net", dataset=f"npz:{table}", seed=5))
    job.ready()

    outcome = job.set(lr=0.02)
    job.passes(20)
    last = job.stop()

    at = outcome["effective_step"]
    both = {**HYPER, "table": str(table), "seed": 5, "changes": {at: 0.02}, "stop": last}
    expected = by_hand(zygote, tmp_path / "plain", WORLD, **both)
    found = rows(job.out, WORLD)
    assert found == expected
    assert [row[0] for row in found[0]] == [0.1] * at + [0.02] * (last - at)


def test_numbers_knobs_and_the_end_of_a_training_reach_the_plane(start: Any, table: Path) -> None:
    hyper = {"epochs": 100_000, "batch_size": 64, "optimizer": "sgd"}
    knobs = {"lr": {"value": 0.5, "min": 0.1, "max": 1.0}, "mood": "good"}
    job = start(words(hyper, model="module:mine.net", dataset=f"npz:{table}", knobs=knobs))
    job.ready(20)

    shown = {one["name"]: one for one in door.ask("knobs", job=job.id)}
    with pytest.raises(LoomError, match="lr must be at most 1"):
        job.set(lr=2.0)
    outcome = job.set(lr=0.25, clip=0.5, mood="bad")
    job.passes(20)
    last = job.stop()

    metrics = {"loss", "accuracy", "lr", "throughput", "step_time", "eval/loss", "eval/accuracy"}
    names = door.ask("metrics", job=job.id, limit=1)["names"]
    at = outcome["effective_step"]
    used = [row[0] for row in rows(job.out, WORLD)[1]]
    assert (shown["lr"]["value"], shown["lr"]["low"], shown["lr"]["high"]) == (0.5, 0.1, 1.0)
    assert (shown["clip"]["value"], shown["mood"]["value"]) == (0.0, "good")
    assert used == [0.5] * at + [0.25] * (last - at)
    assert metrics <= set(names)
    log = loom("logs", job.id)
    assert re.search(rf"x: {last} steps of \d+, 2 workers", log), log
