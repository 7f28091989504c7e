"""The prompt of `loom monitor`: one command, a pipe, a person at a terminal without a screen."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

from ..monitored import Plane, plane_in


@pytest.fixture
def plane(state: Path, tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path / "db") as found:
        yield found


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["monitor", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "words",
    [
        ["set lr=0.03"],
        ["set", "lr=0.03"],
        ["set", "train-1", "lr=0.03"],
        [":set lr=0.03"],
        ["setlr", "0.03"],
        ["reset_lr 0.03"],
        ["--job", "train-1", "set", "lr=0.03"],
        ["--plain", "set lr=.03"],
    ],
    ids=" ".join,
)
def test_one_command_changes_a_knob_on_all_ranks_and_says_so(
    words: list[str], plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")

    code, out, err = said(capsys, *words)

    assert (code, err) == (0, "")
    assert re.fullmatch(r"lr 0\.1 -> 0\.03 at step 2 on ranks 0-1, acked in .* m?s\n", out)
    applied = [[(step, value) for _, step, value in r.applied] for r in plane.ranks["train-1"]]
    assert applied == [[(2, 0.03)]] * 2


def test_flags_of_a_change_reach_the_ranks_and_the_audit(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")

    code, out, _ = said(capsys, "set", "lr=0.03", "--hold", "--at", "9", "--reason", "too fast")

    assert code == 0
    assert out.startswith("lr 0.1 -> 0.03 at step 9 ")
    assert out.endswith(", held\n")
    (row,) = plane.rows("SELECT reason, at FROM commands")
    assert row == ("too fast", 9)
    assert "too fast" in said(capsys, "audit")[1]


def test_pause_resume_and_stop_are_what_the_shells_verbs_are(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")

    texts = [said(capsys, word)[1].partition(" at step")[0] for word in ("pause", "resume", "stop")]

    assert [text.partition(" on ranks")[0] for text in texts] == ["paused", "resumed", "stopped"]
    assert plane.commands() == [
        ("train-1", "pause", "applied"),
        ("train-1", "resume", "applied"),
        ("train-1", "stop", "applied"),
    ]


def test_ranks_are_shown_with_how_far_they_are_behind(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1", ranks=3)
    plane.steps("train-1", 40, 38, 33)

    _, out, _ = said(capsys, "ranks")

    assert [line.split() for line in out.splitlines()] == [
        ["RANK", "STATE", "STEP", "LAG", "STEP", "TIME", "NODE", "REPLICA", "REASON"],
        ["0", "up", "40", "0", "12.5", "ms", "node1", "trainer/0"],
        ["1", "up", "38", "2", "12.5", "ms", "node1", "trainer/1"],
        ["2", "up", "33", "7", "12.5", "ms", "node1", "trainer/2"],
    ]
    assert "3 up; rank 2 is 7 behind" in said(capsys, "show")[1]


def test_jobs_knobs_metrics_events_and_the_plane_are_told(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")
    plane.log("train-1", "loss", 3.0, 2.0, 1.0)

    texts = [said(capsys, word)[1] for word in ("jobs", "knobs", "metrics", "events", "plane")]

    jobs, knobs, metrics, events, weaver = texts
    assert jobs.splitlines()[1].split()[:3] == ["train-1", "train", "RUNNING"]
    assert [line.split()[:2] for line in knobs.splitlines()[1:]] == [
        ["lr", "0.1"],
        ["temperature", "0.7"],
    ]
    assert metrics.splitlines()[1].split() == ["loss", "0", "2", "1", "█▅▁"]
    assert [line.split()[1] for line in events.splitlines()[1:]] == [
        *("job_started", "agent_up", "rank_up", "rank_up"),
    ]
    assert "1 active jobs, 1 agents, 2 ranks" in weaver


@pytest.mark.parametrize("word", ["fail_device", "test", "devices fail", "fail"])
def test_a_failed_device_is_told_and_answered_with_whom_it_concerns(
    word: str, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")

    code, out, _ = said(capsys, f"{word} node1/cpu/1 --reason 'XID 79'")

    assert (code, out) == (0, "node1/cpu/1 is failed; used by train-1/trainer/1\n")
    assert plane.rows("SELECT uuid, state, reason FROM devices ORDER BY uuid") == [
        ("node1/cpu/0", "healthy", ""),
        ("node1/cpu/1", "failed", "XID 79"),
    ]


def test_devices_are_drained_recovered_registered_and_listed(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1", ranks=1)

    texts = [
        said(capsys, line)[1]
        for line in ("drain node1/", "recover_device node1/cpu/0", "register_device GPU-7")
    ]

    assert texts == [
        "node1/cpu/0 is draining; used by train-1/trainer/0\n",
        "node1/cpu/0 is healthy; used by train-1/trainer/0\n",
        "GPU-7 is healthy; used by no rank\n",
    ]
    listed = said(capsys, "devices")[1].splitlines()[1:]
    assert [line.split() for line in listed] == [
        ["GPU-7", "healthy", "-"],
        ["node1/cpu/0", "node1", "healthy", "train-1/trainer/0"],
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("test 50", "no device '50'; `devices` lists them"),
        ("fail_device node1/cpu", "device 'node1/cpu' is ambiguous: node1/cpu/0, node1/cpu/1"),
        ("register_device GPU-7 A0", "ranks report their devices themselves; give only"),
        ("fail_device", "fail_device takes one device; write `fail_device UUID`"),
        ("jbos", "no command 'jbos'; did you mean 'jobs'?; `help` lists them"),
        ("set lr=fast", "lr takes a finite number, not 'fast'"),
        ("set lr=7", "lr must be at most 1, not 7"),
        ("set lrr=1", "no knob 'lrr'; did you mean 'lr'?"),
        ("set lr=0.1 --at soon", "--at needs a whole number, not 'soon'"),
        ("set lr=0.1 --holt", "set has no '--holt'; did you mean '--hold'?"),
        ("set lr=0.1 --at", "--at needs a value"),
        ("set --hold", "nothing to set; write NAME=VALUE, such as lr=0.03"),
        ("ranks train-2", "no job 'train-2'; did you mean 'train-1'?"),
        ("ranks a b", "unexpected argument 'b'; write `ranks [JOB]`"),
        ("set 'lr=1", "cannot read this line: no closing quotation"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(
    line: str, words: str, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")

    code, out, err = said(capsys, line)

    assert (code, out) == (2, "")
    assert err.startswith(f"loom: {words}")
    assert err.count("\n") == 1
    assert plane.commands() == []
    assert plane.rows("SELECT count(*) FROM devices WHERE state != 'healthy'") == [(0,)]


def test_without_a_plane_the_way_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "jobs")

    assert (code, out, err) == (1, "", "loom: no plane runs here; `loom up` starts one\n")


def test_several_active_jobs_are_not_guessed_among(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.job("train-1")
    plane.job("eval-2")

    code, _, err = said(capsys, "pause")

    assert code == 2
    assert "2 jobs are active; name one" in err
    assert said(capsys, "pause eval-2")[0] == 0
    assert plane.commands() == [("eval-2", "pause", "applied")]


@pytest.mark.process
def test_a_pipe_is_read_line_by_line_and_remembers_the_job(plane: Plane, loom: Any) -> None:
    plane.job("train-1")
    plane.job("eval-2", ranks=1)

    done = loom("monitor", stdin=b"# steer\nuse eval\n\nset lr=0.5\nranks\nquit\npause\n")

    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "default job: eval-2"
    assert lines[1].startswith("lr 0.1 -> 0.5 at step 2 on rank 0")
    assert len(lines) == 4
    assert plane.commands() == [("eval-2", "knob", "applied")]


@pytest.mark.process
def test_a_pipe_ends_at_the_first_line_that_fails(plane: Plane, loom: Any) -> None:
    plane.job("train-1")

    done = loom("monitor", stdin=b"use eval\npause\n")

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"loom: no job 'eval'")
    assert plane.commands() == []


@pytest.mark.process
def test_the_seeds_module_is_the_prompt(plane: Plane) -> None:
    plane.job("train-1")

    done = subprocess.run(
        [sys.executable, "-m", "torchloom.monitor_cli"],
        input="test node1/cpu/0\nexit\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "node1/cpu/0 is failed; used by train-1/trainer/0\n"


@pytest.mark.process
@pytest.mark.parametrize("words", [("--plain",), ()], ids=["--plain", "TERM=dumb"])
def test_a_person_is_prompted_helped_and_remembered(
    words: tuple[str, ...],
    plane: Plane,
    state: Path,
    on_terminal: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm" if words else "dumb")
    plane.job("train-1")
    plane.job("eval-2")
    (state / "monitor_history").write_text("jobs\n")
    terminal = on_terminal("monitor", *words)

    terminal.expect(b"loom> ")
    terminal.send(b"use tr\t\n")
    terminal.expect(b"loom train-1> ")
    terminal.send(b"set te\t0.5\n")
    terminal.expect(b"temperature 0.1 -> 0.5 at step 2")
    terminal.send(b"nonsense\n")
    terminal.expect(b"loom: no command 'nonsense'")
    terminal.expect(b"loom train-1> ")
    terminal.send(b"\x04")

    assert terminal.wait() == 0
    assert plane.commands() == [("train-1", "knob", "applied")]
    kept = (state / "monitor_history").read_text().splitlines()
    assert [line.strip() for line in kept] == [
        *("jobs", "use train-1", "set temperature=0.5", "nonsense"),
    ]


@pytest.mark.process
def test_ctrl_c_drops_the_line_and_nothing_else(
    plane: Plane, on_terminal: Callable[..., Any], until: Callable[..., Any]
) -> None:
    plane.job("train-1")
    terminal = on_terminal("monitor", "--plain")

    def pressed(key: bytes) -> bytes:
        """Press a key and look: one that comes while a line is drawn may be heard late."""
        terminal.send(key)
        terminal._read(0.5)
        screen: bytes = terminal.screen
        return screen

    terminal.expect(b"loom> ")
    terminal.send(b"set lr=0.9")
    terminal.expect(b"set lr=0.9")
    until(lambda: b"loom> " in pressed(b"\x03"))
    assert terminal.process.poll() is None
    until(lambda: pressed(b"\x04") and terminal.process.poll() is not None)

    assert terminal.wait() == 0
    assert plane.commands() == []


@pytest.mark.process
def test_the_file_of_typed_lines_is_the_users_alone(
    plane: Plane, state: Path, on_terminal: Callable[..., Any]
) -> None:
    terminal = on_terminal("monitor", "--plain")

    terminal.expect(b"loom> ")
    terminal.send(b"jobs\nquit\n")

    assert terminal.wait() == 0
    assert os.stat(state / "monitor_history").st_mode & 0o777 == 0o600
