import os
import socket
from pathlib import Path

import pytest

from torchloom.launch.node_agent import server
from torchloom.schedulers.local_request import make_unique

Processes = dict[int, tuple[int, dict[str, str]]]  # parent and environment by pid


def proc(folder: Path, processes: Processes) -> Path:
    for pid, (parent, env) in processes.items():
        place = folder / str(pid)
        place.mkdir()
        text = "".join(f"{name}={value}\0" for name, value in env.items())
        (place / "environ").write_text(text)
        (place / "stat").write_text(f"{pid} (a (strange) name) S {parent} " + "1 " * 17 + "777 0")
    return folder


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ({9: (1, {"LOOM_JOB": "j"})}, True),
        ({9: (1, {"LOOM_JOB": "other"})}, False),
        ({9: (1, {"LOOM_AGENT_OF": "j"})}, True),
        ({9: (8, {}), 8: (1, {"LOOM_JOB": "j"})}, True),
        ({9: (8, {}), 8: (7, {"X": "j"}), 7: (1, {"LOOM_AGENT_OF": "j"})}, True),
        ({9: (8, {"LOOM_JOB": "inner"}), 8: (1, {"LOOM_JOB": "j"})}, False),  # the nearest decides
        ({9: (8, {"LOOM_JOB": ""}), 8: (1, {"LOOM_JOB": "j"})}, True),
        ({9: (8, {"NOT_LOOM_JOB": "j"}), 8: (0, {})}, False),
        ({9: (9, {})}, False),  # no endless walk
        ({}, False),  # gone
    ],
)
def test_a_process_speaks_for_the_job_that_its_environment_or_a_parents_names(
    tmp_path: Path, processes: Processes, expected: bool
) -> None:
    assert server.may_speak_for("j", 9, proc(tmp_path, processes)) is expected


def test_a_process_that_nobody_launched_is_a_job_of_its_own(tmp_path: Path) -> None:
    shown = proc(tmp_path, {9: (1, {}), 8: (1, {"LOOM_JOB": "j"})})

    assert server.may_speak_for("local-9", 9, shown)
    assert not server.may_speak_for("local-8", 9, shown)
    assert not server.may_speak_for("local-8", 8, shown)


def test_ranks_that_nobody_launched_share_a_job_that_no_launch_can_have_named(
    tmp_path: Path,
) -> None:
    shown = tmp_path / "none"
    shown.mkdir()

    assert server.may_speak_for("train-0123456789ab", 9, shown)
    assert not server.may_speak_for(make_unique("train"), 9, shown)


def test_the_start_of_a_process_is_read_whatever_its_name(tmp_path: Path) -> None:
    shown = proc(tmp_path, {9: (1, {})})

    assert server.start_time(9, shown) == 777
    assert server.start_time(8, shown) == 0
    assert server.start_time(os.getpid()) > 0


def test_the_kernel_says_who_calls() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert server.peer_of(one) == (os.getpid(), os.getuid())
