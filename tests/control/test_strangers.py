"""Ranks that nobody of ours started: the plane knows of them as soon as they say `loom.init()`."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness.home import until
from ..harness.metric_rows import in_file
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
STEPS = 1_000_000
Begin = Callable[..., "subprocess.Popen[bytes]"]
PYTHON = [sys.executable, str(SCRIPTS / "stranger.py")]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
COMPARED = """
import sys, time
import torchloom as loom

run = loom.init()
run.metric("score", goal="min")
for value in values:
    run.log({"rmse": value, "f1": value, "score": value, "odd": value})
time.sleep(600 if len(sys.argv) > 1 else 0)
"""
LABELLED = """
import os
import torchloom as loom

with loom.init(project="toys") as run:
    run.tags = ("baseline",)
    run.tags += ("v2",)
    run.notes = "the first one\\nthat works"
    for i in range(20):
        run.log(loss=i)
    print(run.id)
    print(run.url)
    print(repr(run), flush=True)
run.log(loss=1.0)
run.log(other=1.0)
os.kill(os.getpid(), 9)
"""
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", *PYTHON]


@pytest.fixture
def begin(plane: Plane, tmp_path: Path) -> Iterator[Begin]:
    """Start programs as anybody may; whatever still runs is ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(*words: str, **env: str) -> "subprocess.Popen[bytes]":
            told = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_AG", "LOOM_W"))}
            run = [*words, str(tmp_path), str(STEPS)]
            one = subprocess.Popen(run, env={**told, **env}, start_new_session=True)
            stack.callback(one.wait)
            stack.callback(end, one.pid)
            return one

        yield start


def end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def rows(folder: Path, rank: int) -> list[Any]:
    path = folder / f"rank-{rank}"
    lines = path.read_bytes().split(b"\n")[1:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def listed(*before: str) -> list[dict[str, Any]]:
    """Return the jobs of this program, without those that were there before."""
    jobs = json.loads(loom("ls", "--json"))
    return [job for job in jobs if job["name"] == "stranger" and job["id"] not in before]


@pytest.mark.parametrize(
    ("words", "world"),
    [
        (PYTHON, 1),
        pytest.param([*TORCHRUN, str(SCRIPTS / "stranger.py")], 2, id="torchrun"),
        pytest.param(MPIRUN, 2, id="mpirun", marks=pytest.mark.needs("mpi")),
    ],
)
def test_a_job_that_anybody_started_is_listed_shown_and_changed(
    begin: Begin, tmp_path: Path, words: list[str], world: int
) -> None:
    before = [job["id"] for job in listed()]

    started = begin(*words)
    until(lambda: any(job["step"] for job in listed(*before)), PATIENCE)
    until(lambda: listed(*before)[0]["world_size"] == world, PATIENCE)
    (job,) = listed(*before)
    until(lambda: "lr" in loom("set", job["id"]), PATIENCE)

    said = loom("set", job["id"], "lr=0.02")
    shown = loom("show", job["id"])
    at = int(said.split(" at step ")[1].split()[0])
    until(lambda: all(len(rows(tmp_path, n)) > at + 10 for n in range(world)), PATIENCE)
    loom("stop", job["id"])
    code = started.wait(PATIENCE)
    until(lambda: listed(*before)[0]["state"] == "COMPLETED", PATIENCE)

    for rank in range(world):
        used = [row[2]["lr"] for row in rows(tmp_path, rank)]
        assert used == [0.05] * at + [0.02] * (len(used) - at)
    assert code == 0
    assert "knobs  lr=0.02" in shown
    assert len(listed(*before)) == 1
    assert not list(Path("/dev/shm").glob(f"loom_{job['id']}*"))


def test_numbers_logged_without_a_loop_are_all_stored_at_their_steps(
    plane: Plane, tmp_path: Path
) -> None:
    records = Path(os.environ["LOOM_HOME"], "plane", "records.db")
    before = {place[0] for place in in_file(records)}
    typed = (SCRIPTS / "notebook.py").read_text()
    words = [sys.executable, "-i"]

    done = subprocess.run(
        words, input=typed, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    until(lambda: any(place[1] == "after" for place in in_file(records)), PATIENCE)
    stored: dict[str, dict[int, float]] = {}
    for (job, name, *_, step), point in in_file(records).items():
        if job not in before:
            stored.setdefault(name, {})[step] = point.value

    said = [line for line in done.stderr.splitlines() if "loom:" in line]
    assert stored == {
        "loss": {i: 1 / (i + 1) for i in range(50)},
        "eval": {i * 10: i * 1.5 for i in range(50)},
        "late": {i: i / 2 for i in range(50)},
        "good": {7: 0.25},
        "huge": {7: 1e30},
        "after": {490 + i: float(i) for i in range(5)},  # behind the highest so far
    }
    assert sorted(line.partition("loom: ")[2].partition(" is not kept: ")[0] for line in said) == [
        "'beyond'",
        "'text'",
        "'thing'",
    ]


def test_runs_are_compared_by_which_way_their_metrics_are_to_go_one_of_them_still_running(
    begin: Begin, plane: Plane, tmp_path: Path
) -> None:
    before = [job["id"] for job in json.loads(loom("ls", "--json"))]
    logged = {"ended": [3.0, float("-inf"), 2.0], "running": [5.0, float("inf"), 1.0]}
    for name, values in logged.items():
        words = f"values = [float(v) for v in {list(map(str, values))}]\n"
        (tmp_path / f"{name}.py").write_text(words + COMPARED)
    subprocess.run([sys.executable, str(tmp_path / "ended.py")], check=True, timeout=PATIENCE)
    begin(sys.executable, str(tmp_path / "running.py"))

    def known() -> list[str]:
        jobs = json.loads(loom("ls", "--json"))
        new = {job["name"]: job for job in jobs if job["id"] not in before}
        states = {name: job["state"] for name, job in new.items()}
        is_right = states == {"ended": "COMPLETED", "running": "RUNNING"}
        return [new[name]["id"] for name in logged] if is_right else []

    def compared() -> dict[str, Any]:
        metrics = json.loads(loom("compare", *known(), "--json"))["metrics"]
        return {one.pop("name"): one for one in metrics}

    until(known, PATIENCE)
    until(lambda: compared().get("odd", {}).get("last") == [2.0, 1.0], PATIENCE)
    table = loom("compare", *known())

    assert compared() == {
        "rmse": {"goal": "min", "last": [2.0, 1.0], "best": [2.0, 1.0], "best_step": [2, 2]}
        | {"winner": 1},
        "f1": {"goal": "max", "last": [2.0, 1.0], "best": [3.0, 5.0], "best_step": [0, 0]}
        | {"winner": 1},
        "score": {"goal": "min", "last": [2.0, 1.0], "best": [2.0, 1.0], "best_step": [2, 2]}
        | {"winner": 1},
        "odd": {"goal": None, "last": [2.0, 1.0], "best": [None] * 2, "best_step": [None] * 2}
        | {"winner": None},
    }
    assert "inf" not in table
    assert re.search(r"rmse +2 \(2 @ 2\) +1 \(1 @ 2\) \*", table)


def test_a_run_is_labelled_flushed_and_finished_by_its_program(
    plane: Plane, tmp_path: Path
) -> None:
    page = json.loads(loom("up", "--status", "--json"))["url"]
    (tmp_path / "labelled.py").write_text(LABELLED)
    words = [sys.executable, str(tmp_path / "labelled.py")]

    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    job, url, shown = done.stdout.splitlines()
    records = Path(os.environ["LOOM_HOME"], "plane", "records.db")
    until(lambda: [one for one in in_file(records) if one[0] == job], PATIENCE)
    with plane.database("state") as base:
        found = base.execute("SELECT config FROM runs WHERE job = ?", (job,)).fetchone()
    points = {step: point.value for (of, *_, step), point in in_file(records).items() if of == job}

    assert url == f"{page}/jobs/{job}"
    assert shown == f"<loom run {job}: project 'toys', rank 0 of 1, step 0, {url}>"
    assert points == {i: i for i in range(20)}  # though the process was killed right after it
    config = json.loads(found[0])
    assert (config["tags"], config["notes"]) == (["baseline", "v2"], "the first one\nthat works")
    assert done.stderr.splitlines() == [
        "loom: what is logged now is not kept: run.finish() was called; "
        "another process is another run"
    ]
    said = loom("show", job)
    assert "tags   baseline, v2" in said
    assert "notes  the first one that works" in said
    assert json.loads(loom("show", job, "--json"))["tags"] == ["baseline", "v2"]


def test_where_there_can_be_no_plane_the_program_runs_on_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    name = f"unwatched{os.getpid()}"  # nobody else's on this machine
    program = shutil.copy(SCRIPTS / "stranger.py", tmp_path / f"{name}.py")
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
    env |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "file")}
    words = [sys.executable, str(program), str(tmp_path), "3"]

    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)

    assert (done.returncode, len(rows(tmp_path, 0))) == (0, 3)
    assert done.stderr.startswith("loom: this run is not monitored: ")
    assert done.stderr.count("\n") == 1
    assert list(Path("/dev/shm").glob(f"loom_{name}-*")) == []
