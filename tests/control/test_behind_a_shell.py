"""A job that is no Python program: the one of its Python programs that trains is attached."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.client import plane as door

from ..harness.home import processes_of, until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch", "bash")]
SHELL = """export RANK=0 WORLD_SIZE=1
{python} -c 'import json'
{python} -c 'import torch.optim' # it only looked
{python} {wrapper} &
wait
"""
WRAPPER = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, {script!r}]))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return a shell script with several Python programs, the last of which trains."""
    wrapper, shell = tmp_path / "wrapper.py", tmp_path / "train.sh"
    wrapper.write_text(WRAPPER.format(script=str(SCRIPTS / "apart.py")))
    shell.write_text(SHELL.format(wrapper=wrapper, python=sys.executable))
    return str(shell)


@pytest.fixture
def started(plane: Plane, warm: None) -> Iterator[list[str]]:
    jobs: list[str] = []
    yield jobs
    for job in jobs:
        if processes_of(job):
            loom("stop", "--now", job)


def run(script: str, out: Path, **env: str) -> str:
    told = {"OUT": out, "STEPPING": "attached", **env}
    words = [word for name, value in told.items() for word in ("-e", f"{name}={value}")]
    job: str = json.loads(loom("run", "--json", *words, "--", "bash", script))["id"]
    return job


def lines(out: Path) -> list[bytes]:
    path = out / "rank-0"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def test_the_program_that_trains_behind_a_shell_is_watched_and_changed(
    script: str, started: list[str], tmp_path: Path
) -> None:
    job = run(script, tmp_path)
    started.append(job)
    until(lambda: [rank["step"] for rank in door.ask("ranks", job=job) if rank["step"]], PATIENCE)

    outcome = door.ask("set", None, job=job, values={"lr": 0.02}, wait=PATIENCE)
    until(lambda: len(lines(tmp_path)) > outcome["effective_step"] + 5, PATIENCE)
    (rank,) = door.ask("ranks", job=job)
    loom("stop", "--now", job)

    at = outcome["effective_step"]
    used = [json.loads(line)[2]["lr"] for line in lines(tmp_path)[1:]]
    assert rank["pid"] == json.loads(lines(tmp_path)[0])["pid"]
    assert used[: at + 3] == [0.05] * at + [0.02] * 3


def test_a_program_is_left_alone_when_it_is_to_be(
    script: str, started: list[str], tmp_path: Path
) -> None:
    job = run(script, tmp_path, LOOM_ATTACH="0")
    started.append(job)
    until(lambda: len(lines(tmp_path)) > 20, PATIENCE)

    assert door.ask("ranks", job=job) == []
    pid = json.loads(lines(tmp_path)[0])["pid"]
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert not any(b"threadlet/site" in entry for entry in environ)
