"""`loom doctor`: what it sees of this machine, and what `--clean` ends."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main


@pytest.fixture
def leftover(ended: Any, until: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a job that is over, as a crash of its agents would leave it."""
    ended("train-a")
    env = {"LOOM_JOB": "train-a", "PATH": os.environ["PATH"]}
    process = subprocess.Popen(["sleep", "600"], env=env)
    until(lambda: b"LOOM_JOB" in Path(f"/proc/{process.pid}/environ").read_bytes())
    yield process
    process.kill()
    process.wait()


def test_a_healthy_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0

    marks = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert marks == ["ok"] * 7


def test_a_runtime_folder_that_others_may_read_is_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "torchloom").mkdir()
    (tmp_path / "run" / "torchloom").chmod(0o755)

    assert main(["doctor"]) == 1

    assert "BAD  runtime" in capsys.readouterr().out


def test_a_state_folder_that_cannot_be_written_is_not_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("LOOM_HOME", str(Path("file").absolute()))

    assert main(["doctor"]) == 1

    assert "set LOOM_HOME to another folder" in capsys.readouterr().out


@pytest.mark.process
def test_what_an_ended_job_left_running_is_found_and_ended(
    leftover: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 1
    assert "train-a: 1 processes; `loom doctor --clean` ends them" in capsys.readouterr().out

    assert main(["doctor", "--clean"]) == 0

    assert "ended 1 processes, removed 0 folders" in capsys.readouterr().out
    assert leftover.wait(60) == -9


def test_half_made_folders_are_removed_once_nobody_is_at_work_on_them(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = state / "runs/.new-old", state / "runs/.new-young"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))

    assert main(["doctor", "--clean"]) == 0

    assert "removed 1 folders" in capsys.readouterr().out
    assert (old.exists(), new.exists()) == (False, True)
    new.rmdir()
