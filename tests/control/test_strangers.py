"""Ranks that nobody of ours started: the plane knows of them as soon as they say `loom.init()`."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..living import until
from .steering import PATIENCE, SCRIPTS, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
STEPS = 1_000_000
Begin = Callable[..., "subprocess.Popen[bytes]"]
PYTHON = [sys.executable, str(SCRIPTS / "stranger.py")]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
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


def test_where_there_can_be_no_plane_the_program_runs_on_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    name = f"unwatched{os.getpid()}"  # nobody else's on this machine
    program = shutil.copy(SCRIPTS / "stranger.py", tmp_path / f"{name}.py")
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
    env |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "file")}
    words = [sys.executable, str(program), str(tmp_path), "3"]

    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)

    assert (done.returncode, len(rows(tmp_path, 0))) == (0, 3)
    assert done.stderr.startswith("loom: nobody watches this run: ")
    assert done.stderr.count("\n") == 1
    assert list(Path("/dev/shm").glob(f"loom_{name}-*")) == []
