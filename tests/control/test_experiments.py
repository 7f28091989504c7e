"""Runs under a living plane: recorded, summed up, compared and drawn; ground truth is elsewhere."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..cli.test_json import problems
from ..harness.home import until
from ..harness.plane_jobs import LOOM, PATIENCE, SCRIPTS, Job, Plane, loom
from ..harness.repositories import committed, git

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a program in a real repository, changed since its commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    path = folder / "experiment.py"
    path.write_text((SCRIPTS / "experiment.py").read_text())
    committed(folder)
    path.write_text(path.read_text() + "print('changed')\n")
    (folder / "notes.txt").write_text("mine\n")
    return path


def told(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = door.ask("experiment", run=job.id)
    return found


def exported(job: Job) -> dict[str, Any]:
    """Return what a report of a run would hold now."""
    found = json.loads(loom("export", job.id, "--json"))
    assert problems("export", found) == []
    run: dict[str, Any] = found["runs"][0]
    return run


def summed_up(job: Job) -> dict[str, Any]:
    """Return a run when its summary has all that its rank 0 has logged."""
    last = job.rows(0)[-1].used["loss"]

    def is_whole() -> bool:
        metrics = (told(job)["summary"] or {}).get("metrics", {})
        return "loss" in metrics and abs(metrics["loss"]["last"] - last) < 1e-9

    until(is_whole, PATIENCE)
    return told(job)


def test_a_run_is_recorded_steered_and_summed_up(
    start: Callable[..., Job], source: Path, place: Path
) -> None:
    job = start(str(source), WORLD, SECRET_KEY="hunter2").ready("temperature")
    job.logged("loss")
    change = job.set({"temperature": 0.5}, reason="cooler")
    living = exported(job)
    stopped = job.stop()

    run = summed_up(job)

    folder, record = source.parent, run["recorded"]
    assert run["commit"] == git(folder, "rev-parse", "HEAD").decode().strip()
    assert (run["branch"], run["dirty"], run["project"]) == ("work", True, "toys")
    saved = place / "loom" / "runs" / job.id
    assert (saved / "diff.patch").read_bytes() == git(folder, "diff", "HEAD")
    assert record["git"]["untracked"] == ["notes.txt"]
    assert json.loads((saved / "experiment.json").read_bytes()) == record
    assert record["torch"] == version("torch")
    assert record["packages"]["numpy"] == version("numpy")
    assert (record["world_size"], len(record["hardware"]["devices"]) > 0) == (WORLD, True)
    assert "hunter2" not in json.dumps(run) + json.dumps(living)
    assert (living["job"]["state"], [rank["state"] for rank in living["ranks"]]) == (
        *("RUNNING", ["up"] * WORLD),
    )
    (knob,) = (one for one in living["timeline"] if one["kind"] == "knob")
    assert (knob["title"], knob["reason"], knob["step"]) == (
        *("temperature 0.7 -> 0.5", "cooler", change["effective_step"]),
    )
    assert "SECRET_KEY" in record["env"]["names"]
    first, second = run["timeline"]
    assert (first["step"], first["values"]["temperature"]) == (0, 0.7)
    assert (second["step"], second["values"]) == (change["effective_step"], {"temperature": 0.5})
    assert (second["reason"], run["config"]["temperature"]) == ("cooler", 0.7)
    losses = {row.step: row.used["loss"] for row in job.rows(0)}
    best = min(losses, key=lambda step: losses[step])
    summary = run["summary"]
    assert (run["state"], summary["steps"], summary["restarts"]) == ("COMPLETED", stopped, 0)
    assert summary["metrics"]["loss"]["best"] == pytest.approx(losses[best])
    assert summary["metrics"]["loss"]["best_step"] == best
    assert summary["faults"] == []


def test_a_rank_that_is_killed_is_the_fault_of_its_run(start: Callable[..., Job]) -> None:
    job = start("experiment.py", WORLD).ready("temperature")
    os.kill(job.pid(1), signal.SIGKILL)
    job.gone()

    until(lambda: told(job)["summary"], PATIENCE)

    run = told(job)
    (fault,) = run["summary"]["faults"]
    assert run["state"] == "FAILED"
    assert (fault["kind"], fault["rank"], fault["reason"]) == ("exit", 1, "exit_signal_9_rank_1")


def test_a_weaver_killed_as_a_job_ends_leaves_its_summary_to_the_next(
    start: Callable[..., Job], plane: Plane
) -> None:
    job = start("experiment.py", 1).ready("temperature")
    with contextlib.suppress(Exception):
        door.ask("stop", 0.5, job=job.id)
    plane.back("weaver", plane.kill("weaver"))
    with contextlib.suppress(Exception):  # it ends already, unless the wish died with the weaver
        door.ask("stop", job=job.id)
    job.gone()

    run = summed_up(job)

    assert (run["state"], run["summary"]["steps"]) == ("COMPLETED", job.step() + 1)


def test_runs_are_found_compared_and_drawn(start: Callable[..., Job], tmp_path: Path) -> None:
    jobs = [start("experiment.py", 1, STEPS=200 + n) for n in (0, 1)]
    for job in jobs:
        job.gone()
        summed_up(job)
    first, second = (job.id for job in jobs)

    found = door.ask("experiments", text="toys completed", where=["loss<1000"], limit=2)
    assert [one["run_id"] for one in found["items"]] == [second, first]
    compared = json.loads(loom("compare", first, second, "--json"))
    assert problems("compare", compared) == []
    sums = {row["name"]: row["values"] for row in compared["summary"]}
    assert sums["steps"] == [200, 201]
    assert loom("compare", first, second).splitlines()[0].split() == [first, second]
    (curve,) = json.loads(loom("plot", first, "loss", "--json"))
    assert problems("plot", [curve]) == []
    rows = jobs[0].rows(0)
    assert curve["steps"] == [row.step for row in rows]
    assert curve["values"] == pytest.approx([row.used["loss"] for row in rows])
    (loss,) = (one for one in exported(jobs[0])["series"] if one["name"] == "loss")
    assert (loss["steps"], loss["values"]) == (curve["steps"], curve["values"])
    plain = loom("plot", first, "--smooth", "0.9", "--by", "time")
    assert plain.splitlines()[0].split() == ["loss", "by", "time"]
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in plain
    loom("plot", first, "loss", "--out", str(tmp_path / "x.svg"))
    assert b"</svg>" in (tmp_path / "x.svg").read_bytes()


@pytest.fixture(scope="module")
def short() -> list[str]:
    """Return the run of a few steps that all of these ask for, once there is one."""
    return []


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["compare", "@"], 2, "name 2 to 20 runs"),
        (["compare", "@", "nosuch"], 2, "no job 'nosuch'"),
        (["plot", "@", "los"], 2, "did you mean 'loss'?"),
        (["plot", "@", "loss", "--out", "x.gif"], 2, "must end in .png"),
        (["plot", "@", "loss", "--out", "/nosuch/x.png"], 1, "cannot write /nosuch/x.png"),
        (["plot", "@", "--smooth", "1"], 2, "--smooth"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_code(
    start: Callable[..., Job], short: list[str], words: list[str], code: int, why: str
) -> None:
    if not short:
        job = start("experiment.py", 1, STEPS=5)
        job.gone()
        short.append(job.id)
    words = [short[0] if word == "@" else word for word in words]

    done = subprocess.run([LOOM, *words], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr


def test_a_terminal_has_colours_unless_somebody_wants_none(start: Callable[..., Job]) -> None:
    job = start("experiment.py", 1, STEPS=50)
    job.gone()
    summed_up(job)

    seen = [_on_terminal("plot", job.id, **env) for env in ({}, {"NO_COLOR": "1"})]

    assert [b"\x1b[36m" in text for text in seen] == [True, False]
    stripped = re.sub(rb"\x1b\[[0-9;]*m", b"", seen[0])
    assert stripped == seen[1]
    assert max(len(line.decode()) for line in seen[1].split(b"\r\n")) <= 80


def _on_terminal(*words: str, **env: str) -> bytes:
    """Return what a command writes on a terminal of 80 by 24."""
    ours, theirs = pty.openpty()
    told = {**os.environ, "COLUMNS": "80", "LINES": "24", **env}
    with subprocess.Popen([LOOM, *words], stdout=theirs, stdin=subprocess.DEVNULL, env=told) as one:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                text += part
    os.close(ours)
    assert one.returncode == 0
    return text
