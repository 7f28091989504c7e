"""What cannot be taken back is asked for first on a terminal, and only there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

WAITING = """
import time
from pathlib import Path
Path("rank.pid").write_text(str(__import__("os").getpid()))
give_up = time.monotonic() + 50
while time.monotonic() < give_up:
    time.sleep(0.02)
"""


def rank(until: Any) -> int:
    """Return the process of the rank, by what it wrote itself."""
    return int(until(lambda: Path("rank.pid").exists() and Path("rank.pid").read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.process
def test_rm_on_a_terminal_asks_and_a_no_keeps_the_job(
    on_terminal: Any, ended: Any, state: Path
) -> None:
    ended("train-a")
    folder = state / "runs" / "train-a"

    refused = on_terminal("rm", "train-a")
    refused.expect(b"remove train-a")
    refused.send(b"n\n")
    assert refused.wait() == 1
    assert folder.is_dir()

    agreed = on_terminal("rm", "train-a")
    agreed.expect(b"[y/N]")
    agreed.send(b"y\n")
    assert agreed.wait() == 0
    assert not folder.exists()


@pytest.mark.process
def test_rm_asks_nothing_when_it_is_told_yes_or_has_no_terminal(
    on_terminal: Any, ended: Any, loom: Any, state: Path
) -> None:
    ended("train-a")
    ended("train-b")

    terminal = on_terminal("rm", "-y", "train-a")
    assert terminal.wait() == 0
    assert loom("rm", "train-b").returncode == 0

    assert b"[y/N]" not in terminal.screen
    assert loom.ids() == []


@pytest.mark.process
def test_a_bare_stop_of_another_shells_job_names_it_and_asks(
    on_terminal: Any, loom: Any, script: Any, until: Any
) -> None:
    job = json.loads(loom("run", "-d", "--json", script(WAITING)).stdout)["id"]
    pid = rank(until)

    refused = on_terminal("stop")
    assert job.encode() in refused.expect(b"[y/N]")
    refused.send(b"n\n")
    assert refused.wait() == 1
    assert is_alive(pid)

    killed = on_terminal("kill")  # the same, with the same question
    shown = killed.expect(b"[y/N]")
    assert (job.encode() in shown, b"loom doctor --clean" in shown) == (True, True)
    killed.send(b"y\n")
    assert killed.wait() == 0
    until(lambda: not is_alive(pid), "the rank to end")


@pytest.mark.process
def test_a_bare_stop_in_the_shell_that_started_the_job_only_names_it(
    on_terminal: Any, script: Any, until: Any
) -> None:
    words = f"loom run -d {script(WAITING)}; loom stop"

    terminal = on_terminal("-c", words, command="/bin/sh")

    assert terminal.wait() == 0
    shown = terminal.screen.decode()
    assert "[y/N]" not in shown
    assert "loom: stopping train-" in shown
    assert "CANCELLED" in shown


@pytest.mark.process
def test_a_bare_stop_without_a_terminal_stops_as_it_is_told(
    loom: Any, script: Any, until: Any
) -> None:
    job = json.loads(loom("run", "-d", "--json", script(WAITING)).stdout)["id"]
    pid = rank(until)

    done = loom("stop")

    assert (done.returncode, done.stdout.decode().split()) == (0, [job, "CANCELLED"])
    assert not is_alive(pid)


def test_kill_without_a_job_says_what_ends_what_crashes_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["kill"]) == 2

    said = capsys.readouterr().err
    assert "no job is active" in said
    assert "`loom doctor --clean`" in said


@pytest.mark.process
def test_the_record_of_a_run_has_the_leader_of_its_session(
    loom: Any, script: Any, state: Path
) -> None:
    words = ("run", "-d", "--wait", "--json", script("pass"))

    leader = loom.start(*words, start_new_session=True)

    job = json.loads(leader.communicate()[0])["id"]
    kept = json.loads((state / "runs" / job / "status.json").read_text())["shell"]
    assert (kept["host"], kept["pid"]) == (os.uname().nodename, leader.pid)
