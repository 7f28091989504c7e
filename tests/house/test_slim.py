"""What a job's own processes need of others: a few packages, and a job trains with only those."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.client.plane import ask, leave
from torchloom.launch.keeper.zygote_client import leave_all

from ..harness.home import TIMEOUT, home
from .slim import SOURCE, make_environment

__all__ = ["home"]
EXAMPLE = SOURCE.parent / "examples/pytorch/train_resumable.py"
PACKAGES = {  # what launch and worker, and what they call of ours, import of others
    "torch": "the ranks",
    "numpy": "torch.from_numpy, for data sets of `loom.train`",
    "msgspec": "messages of the threadlet",
    "blake3": "hashes of checkpoints",
    "xxhash": "hashes of state that a rank gets from another",
    "threadpoolctl": "thread pools of a zygote, before it forks",
}


@pytest.fixture
def plane(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a plane, which runs in the whole environment."""
    monkeypatch.delenv("LOOM_PLANE", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LOOM_WARM", "1")
    _run(sys.executable, "up")
    yield
    leave_all()
    leave()


@pytest.mark.process
def test_a_job_trains_where_only_those_are_installed(
    plane: None, home: Path, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "slim", PACKAGES)

    for _ in range(2):  # the second time by a zygote, if one is ready
        words = ("launch", "--nproc-per-node", "2", str(EXAMPLE), "--epochs", "1")
        done = _run(python, *words)
        assert done.stdout.count(": weights ") == 2
        assert "has no" not in done.stderr  # of an interpreter that a zygote cannot use
        assert "NumPy" not in done.stderr

    jobs = ask("jobs", limit=10)
    assert [(job["state"], job["step"]) for job in jobs] == [("COMPLETED", 64)] * 2
    assert len(list(home.glob("runs/*/checkpoints/ckpt_step_*/manifest.json"))) == 6


def _run(python: Path | str, *words: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [python, "-P", "-m", "torchloom", *words],
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done
