"""`loom doctor`: what it says of this machine, and what `--clean` ends."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

from ...harness.home import until
from ..monitored import plane_in
from ..test_json import problems

LOOKS = (
    *("python", "torch", "devices", "mpi", "scheduler", "hosts", "ports", "dns", "state"),
    *("runtime", "shm", "disk", "caches", "limits", "clock", "leftovers", "retention"),
)


@pytest.fixture
def leftover(ended: Any, until: Any, state: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a job that is over, as a crash of its agents would leave it."""
    ended("train-a")
    env = {"LOOM_JOB": "train-a", "LOOM_HOME": str(state), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(["sleep", "600"], env=env)
    until(lambda: b"LOOM_JOB" in Path(f"/proc/{process.pid}/environ").read_bytes())
    yield process
    process.kill()
    process.wait()


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    main(["doctor", "--quick", "--json", *words])
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


def test_every_topic_has_its_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)

    assert set(LOOKS) <= set(found)
    assert problems("doctor", list(found.values())) == []
    assert all(each["remedy"] for each in found.values() if each["state"] != "ok")


def test_a_runtime_folder_that_others_may_read_is_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "torchloom").mkdir()
    (tmp_path / "run" / "torchloom").chmod(0o755)

    assert main(["doctor", "--quick"]) == 1

    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("problem  runtime"))
    assert lines[at + 1].split(maxsplit=1)[1].startswith("chmod 700 ")


def test_a_state_folder_that_cannot_be_written_is_not_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("LOOM_HOME", str(Path("file").absolute()))

    assert main(["doctor", "--quick"]) == 1

    assert "set LOOM_HOME to another folder" in capsys.readouterr().out


def test_a_host_file_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "--hostfile", "/no/such/file")

    assert found["hosts"]["state"] == "problem"
    assert "/no/such/file" in found["hosts"]["text"]


def test_a_folder_for_logs_in_a_config_file_is_looked_at(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Path(".loomconfig").write_text(f"[local]\nlog_dir = {tmp_path}/logs\n")

    assert findings(capsys)["logs"]["text"].startswith(f"{tmp_path}/logs (")


@pytest.mark.process
@pytest.mark.needs("torch")
def test_backends_are_asked_of_torch_and_quick_leaves_them_out(loom: Any) -> None:
    slow = {each["name"] for each in json.loads(loom("doctor", "--json").stdout)}
    quick = {each["name"] for each in json.loads(loom("doctor", "--json", "--quick").stdout)}

    assert slow - quick == {"backends"}


@pytest.mark.process
def test_a_terminal_sees_problems_first_and_all_of_it_at_once(
    on_terminal: Any, tmp_path: Path
) -> None:
    (tmp_path / "run" / "torchloom").mkdir()
    (tmp_path / "run" / "torchloom").chmod(0o755)
    terminal = on_terminal("doctor", "--quick", size=(24, 80))

    assert terminal.wait() == 1

    shown = terminal.screen.rpartition(b"\r\x1b[K")[2].decode().splitlines()
    plain = [
        line.replace("\x1b[31m", "").replace("\x1b[32m", "").replace("\x1b[0m", "")
        for line in shown
    ]
    assert len(plain) <= 23
    assert all(len(line) <= 80 for line in plain if "\x1b" not in line)
    assert plain[0].startswith("problem ")
    states = [line.split()[0] for line in plain if not line.startswith(" ")]
    assert states == sorted(states, key=["problem", "\x1b[33mnote", "ok"].index)


@pytest.mark.process
def test_a_low_terminal_gets_what_is_well_in_one_line(on_terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "run" / "torchloom").mkdir()
    (tmp_path / "run" / "torchloom").chmod(0o755)
    terminal = on_terminal("doctor", "--quick", size=(10, 80))

    assert terminal.wait() == 1

    shown = terminal.screen.rpartition(b"\r\x1b[K")[2].decode().splitlines()
    assert sum("mok " in line for line in shown) == 1
    assert len(shown) <= 9


@pytest.mark.process
def test_what_an_ended_job_left_running_is_found_and_ended(
    leftover: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--quick"]) == 1
    assert "1 process" in capsys.readouterr().out

    assert main(["doctor", "--clean", "--dryrun"]) == 0
    would = capsys.readouterr().out
    assert leftover.poll() is None
    assert main(["doctor", "--clean"]) == 0

    assert f"would clean up process {leftover.pid} sleep 600 (of train-a)" in would
    assert f"ended    process {leftover.pid} sleep 600 (of train-a)" in capsys.readouterr().out
    assert leftover.wait(60) == -15


@pytest.mark.process
def test_a_living_job_survives_the_cleaning_and_can_be_stopped_after_it(
    loom: Any, script: Any, until: Any
) -> None:
    name = script("import time; print('up', flush=True); time.sleep(600)")
    job = loom("run", "-d", "-n", "2", name).stdout.decode().split()[-1].rpartition("/")[2]
    until(lambda: loom("logs", job).stdout.count(b"up") == 2)
    before = set(loom.processes())

    cleaned = json.loads(loom("doctor", "--clean", "--json").stdout)

    assert [each for each in cleaned if each["job"] == job] == []
    assert before <= set(loom.processes())
    loom("stop", "--now", job)


@pytest.mark.process
def test_what_is_cleaned_keeps_to_its_schema(
    leftover: "subprocess.Popen[bytes]", capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    (state / "runs/.new-old").mkdir()
    os.utime(state / "runs/.new-old", (0, 0))

    main(["doctor", "--clean", "--json"])

    everything = json.loads(capsys.readouterr().out)
    rows = [each for each in everything if each["job"] == "train-a" or str(state) in each["name"]]
    assert problems("doctor-clean", everything) == []
    assert [(row["kind"], row["job"], row["pid"], row["done"]) for row in rows] == [
        ("process", "train-a", leftover.pid, True),
        ("folder", None, None, True),
    ]


def test_what_is_kept_and_its_size_is_told(
    ended: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, state: Path
) -> None:
    ended("train-a", logs=["x" * 100_000])
    Path.home().joinpath(".loomconfig").write_text("[retention]\nlogs = 30d\n")

    found = findings(capsys)

    assert found["retention"]["text"] == "logs after 30d; the last 100 runs stay"
    assert found["runs"]["text"].startswith("1 run with ")
    assert found["runs"]["text"].endswith(f" of it logs, in {state}/runs")


def test_without_a_plane_what_is_old_goes_from_the_folders(
    ended: Any, capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    for job in ("train-a", "train-b"):
        ended(job, logs=["why\n"])
    Path.home().joinpath(".loomconfig").write_text("[retention]\nruns = 0h\nkeep = 1\n")

    assert main(["doctor", "--clean", "--dryrun"]) == 0
    would = capsys.readouterr().out
    assert (state / "runs/train-a").is_dir()
    assert main(["doctor", "--clean", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert "would remove run train-a" in would
    assert problems("doctor-clean", rows) == []
    assert [(row["kind"], row["job"], row["done"]) for row in rows if row["kind"] == "run"] == [
        ("run", "train-a", True)
    ]
    assert not (state / "runs/train-a").exists()
    assert (state / "runs/train-b").is_dir()


def test_a_plane_that_is_there_does_it(
    ended: Any, capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path
) -> None:
    Path.home().joinpath(".loomconfig").write_text("[retention]\nruns = 0h\nkeep = 0\n")
    with plane_in(tmp_path / "db") as plane:
        plane.job("train-a")
        plane.job("train-b")
        ended("train-a")
        plane.end("train-a", "COMPLETED", "ranks_ended")
        until(lambda: ("COMPLETED",) in plane.rows("SELECT state FROM jobs"))

        assert main(["doctor", "--clean"]) == 0

        assert plane.rows("SELECT id FROM jobs") == [("train-b",)]

    assert "removed  run train-a" in capsys.readouterr().out
    assert not (state / "runs/train-a").exists()


def test_a_mistake_in_the_section_is_refused_before_anything_goes(
    ended: Any, capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    ended("train-a")
    Path.home().joinpath(".loomconfig").write_text("[retention]\nruns = 0h\nkeep = none\n")

    assert main(["doctor", "--clean"]) == 2

    assert "[retention] keep = none: write how many runs to keep" in capsys.readouterr().err
    assert main(["doctor", "--quick"]) == 1
    assert "problem  retention" in capsys.readouterr().out
    assert (state / "runs/train-a").is_dir()


def test_a_dry_run_without_cleaning_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dryrun"]) == 2

    assert "--dryrun needs --clean" in capsys.readouterr().err
