"""Jobs of every kind, submitted by HTTP: what four processes log is told while they train."""

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ..control.conftest import living
from ..harness.home import processes_of, until
from ..harness.http_door import HELD, LEARN, Door, Listener, door_of_admin, listening, notes
from ..harness.plane_jobs import PATIENCE, loom
from ..harness.postgres_server import new_database, running_postgres

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = range(4)
STEPS = 40  # of the ready-made training: 5,120 samples by 4 x 64, twice
KINDS: dict[str, dict[str, Any]] = {
    "script": {"script": "learn.py"},
    "module": {"module": "learn"},
    "command": {"command": [sys.executable, "learn.py"]},
}
TRAINED = re.compile(r"made: (\d+) steps, 4 workers, .*; .*loss ([0-9.e-]+),")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield new_database(url, "plane")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def door(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """Give a plane in folders of its own for each database, and the admin's way in."""
    database = request.getfixturevalue("postgres") if request.param == "postgres" else ""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
            (folder / name).mkdir(mode=0o700)
            patch.setenv(variable, str(folder / name))
        for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
            patch.delenv(variable, raising=False)
        patch.setenv("LOOM_WARM", "1")  # torch is imported by the first job for all
        patch.setenv("LOOM_DATABASE", database)
        patch.setenv("OMP_NUM_THREADS", "1")
        loom("up")
        yield door_of_admin()
        loom("down")
        for pid in living(folder):  # the warm interpreter
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        until(lambda: not living(folder), PATIENCE)
    left = {path.name for path in (folder / "loom" / "plane").glob("*.db")}
    assert left == (set() if database else {"state.db", "records.db"})


def spec(name: str, **program: Any) -> dict[str, Any]:
    workers = {"resources": {"workers": len(WORLD)}, "distributed": {"backend": "gloo"}}
    return {"name": name, **workers, **program}


def introduced(rank: int, pid: int) -> dict[str, Any]:
    """Return what a rank must have written of itself, if it is this process."""
    return {"pid": pid, "rank": rank, "world": len(WORLD), "backend": "gloo"}


def ranks_of(job: str) -> dict[int, int]:
    """Return the processes that are the four ranks of a job by /proc, by rank."""
    found = {}
    for pid in processes_of(job):
        with contextlib.suppress(OSError):  # it has just ended
            words = Path(f"/proc/{pid}/environ").read_text().split("\0")
            env = dict(word.partition("=")[::2] for word in words)
            if "LOOM_JOB" in env and env.get("WORLD_SIZE") == str(len(WORLD)):  # no agent
                found[int(env["RANK"])] = pid
    return found


def hears_all(listener: Listener) -> None:
    """Come back when each rank has been heard of."""
    until(lambda: listener.ranks() == set(WORLD), PATIENCE)


def is_known(door: Door, job: str, steps: int, last: float) -> None:
    """Check how a job has ended, and what the experiments say of it."""
    ended = door.ends(job)
    assert (ended["status"], ended["summary"]["steps"]) == ("COMPLETED", steps)
    listed = [run["run_id"] for run in door.ask("/api/experiments")["items"]]
    assert listed.count(ended["run_id"]) == 1
    run = door.ask(f"/api/experiments/{ended['run_id']}")
    summary = run["summary"]
    assert (summary["steps"], summary["metrics"]["loss"]["last"]) == (steps, last)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_four_ranks_log_is_told_while_they_run_and_kept(
    kind: str, door: Door, tmp_path: Path
) -> None:
    shutil.copy(LEARN, tmp_path)
    job = door.submit(spec(kind, **KINDS[kind], env={"OUT": str(tmp_path)}), tmp_path)

    with listening(door, job) as listener:
        hears_all(listener)
        seen = ranks_of(job)
        (tmp_path / "enough").touch()  # until now they ran
        door.ends(job)
        written = {rank: notes(tmp_path, rank) for rank in WORLD}
        points = sorted(
            (rank, step, loss, mark)
            for rank, (_, *rows) in written.items()
            for step, _, loss, mark in rows
        )
        until(lambda: len(listener.said("metric", "loss")) >= len(points), PATIENCE)

    told = {rank: rows[0] for rank, rows in written.items()}
    assert told == {rank: introduced(rank, pid) for rank, pid in seen.items()}
    assert listener.said("metric", "rank", "step", "loss", "mark") == points
    assert door.points(job, "loss") == [(rank, step, loss) for rank, step, loss, _ in points]
    assert door.points(job, "mark") == [(rank, step, mark) for rank, step, _, mark in points]
    last = written[0][-1]
    is_known(door, job, last[0] + 1, last[2])


def test_a_model_learns_a_dataset_on_four_ranks_and_is_watched_meanwhile(
    door: Door, tmp_path: Path
) -> None:
    shutil.copy(HELD, tmp_path)
    shape = {"batch_size": 64, "epochs": 2, "eval_fraction": 0}
    what = {"model": "mlp", "dataset": "module:held.samples", "hyperparameters": shape}
    job = door.submit(spec("made", **what, env={"OUT": str(tmp_path)}), tmp_path)

    with listening(door, job) as listener:
        hears_all(listener)
        seen = ranks_of(job)
        (tmp_path / "enough").touch()  # until now there were no more samples
        door.ends(job)
        until(lambda: len(listener.said("metric", "loss")) >= STEPS * len(WORLD), PATIENCE)

    told = {rank: notes(tmp_path, rank)[0] for rank in WORLD}
    assert told == {rank: introduced(rank, pid) for rank, pid in seen.items()}
    points = listener.said("metric", "rank", "step", "loss")
    places = [(rank, step) for rank in WORLD for step in range(STEPS)]
    assert [(rank, step) for rank, step, _ in points] == places
    assert door.points(job, "loss") == points
    (line,) = [line for (line,) in listener.said("log", "message") if line.startswith("made: ")]
    trained = TRAINED.match(line)
    last = {rank: loss for rank, _, loss in points}
    assert trained is not None, line
    assert trained.groups() == (str(STEPS), f"{fmean(last.values()):.4g}")
    is_known(door, job, STEPS, last[0])
