"""A restart repeats steps with other values: the curve has the new ones, and the old ones stay."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..cli.test_json import problems
from ..harness.home import until
from ..harness.metric_rows import in_file, replaced_in_file
from ..harness.plane_jobs import LOOM, PATIENCE, Job, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def test_what_a_restart_repeats_is_plotted_and_exported_beside_what_it_replaced(
    start: Callable[..., Job], place: Path
) -> None:
    stored = place / "loom" / "plane" / "records.db"
    job = start("repeated.py", 1, retries=1)
    job.gone()
    until(lambda: len(of(job, replaced_in_file(stored))) == 5, PATIENCE)

    plotted = json.loads(loom("plot", job.id, "loss", "--replaced", "--json"))
    plain = json.loads(loom("plot", job.id, "loss", "--json"))
    drawn = loom("plot", job.id, "loss", "--replaced")
    exported = json.loads(loom("export", job.id, "--json"))

    before, after = (
        dict(json.loads(line)) for line in (job.out / "logged").read_text().splitlines()
    )
    kept = {step: list(its.items()) for step, its in of(job, replaced_in_file(stored)).items()}
    shown = {step: point.value for step, point in of(job, in_file(stored)).items()}
    ((generation, _),) = kept[5]
    assert shown == {**before, **after}
    assert {step: its[0][1].value for step, its in kept.items()} == {n: before[n] for n in after}
    (curve,) = plotted
    (older,) = curve["replaced"]
    assert (curve["steps"], curve["values"]) == (list(range(10)), list(shown.values()))
    assert (older["generation"], older["steps"]) == (generation, [5, 6, 7, 8, 9])
    assert older["values"] == [before[step] for step in older["steps"]]
    assert plain == [{name: curve[name] for name in curve if name != "replaced"}]
    assert (
        problems("plot", plotted) == problems("plot", plain) == problems("export", exported) == []
    )
    assert f"·· replaced: generation {generation}" in drawn
    assert sum(line.count("·") for line in drawn.splitlines()[:-1]) == 5
    (series,) = (one for one in exported["runs"][0]["series"] if one["name"] == "loss")
    (former,) = series["replaced"]
    assert series["values"] == curve["values"]
    assert (former["steps"], former["last"]) == (older["steps"], older["values"])


def test_a_plot_says_where_no_step_was_repeated(start: Callable[..., Job]) -> None:
    job = start("logged.py", 1)
    job.logged("loss")

    done = subprocess.run(
        [LOOM, "plot", job.id, "loss", "--replaced"], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, "·" in done.stdout) == (0, False)
    assert f"no restart of {job.id} has repeated a step of these curves" in done.stderr


def of(job: Job, found: dict[Any, Any]) -> dict[int, Any]:
    """Return what a database has of a job's loss, by step."""
    return {place[4]: its for place, its in sorted(found.items()) if place[:2] == (job.id, "loss")}
