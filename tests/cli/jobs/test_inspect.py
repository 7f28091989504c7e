"""`loom inspect JOB stacks`: each stack once, with the ranks that have it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from torchloom.cli.commands import cmd_inspect as stacks
from torchloom.cli.main import main
from torchloom.messages.plane import Frame, ProcessSample, Stacks, Thread
from torchloom.weaver.health.hangs import role_shape, weigh
from torchloom.weaver.health.roster import _row as row

from ...harness.fake_agents import register
from ...harness.home import until
from ..monitored import Plane, plane_in
from ..test_json import problems

Captured = pytest.CaptureFixture[str]
BARRIER = Frame("barrier", "/v/site-packages/torch/distributed/distributed_c10d.py", 5, "x()")
MAIN = Frame("<module>", "/job/train.py", 9)
SLEEP = Frame("load", "/job/train.py", 32, "time.sleep(9)")


def of(rank: int, *frames: Frame) -> Stacks:
    threads = (Thread("MainThread", True, frames), Thread("", False, (SLEEP,))) if frames else ()
    source, note = ("py-spy", "") if frames else ("", "py-spy is not installed")
    looks = tuple(ProcessSample(at, 1.0, "S", "", source, threads, note) for at in (1.0, 2.0))
    return Stacks(register(rank).head, "node-1", "s", looks)


def answer(*seen: Stacks) -> dict[str, Any]:
    """Return what the weaver says of ranks; without any, of four that hang."""
    seen = seen or (of(0, BARRIER, MAIN), of(1, SLEEP, MAIN), of(2, BARRIER, MAIN), of(3))
    ranks = [row("node-1", register(one.head.rank), 0.0) for one in seen]
    stacks = {one.head.incarnation: one for one in seen}
    evidence = weigh("trainer", ranks, dict.fromkeys(range(4), 20), stacks)
    time = "2026-01-01T00:00:00.000+00:00"
    return {"job": "j", "taken": "now", "time": time, "roles": [role_shape(evidence)]}


def test_each_stack_is_printed_once_with_its_ranks() -> None:
    assert "\n".join(stacks.stack_lines(answer(), all_threads=False)) == (
        "trainer: rank 1 stands still in load (job/train.py:32) while ranks 0, 2 wait for their"
        " peers in barrier (distributed/distributed_c10d.py:5) from <module> (job/train.py:9)\n"
        "\n"
        "rank 1  step 20, waiting, has not moved, by py-spy\n"
        "    load (job/train.py:32)  time.sleep(9)\n"
        "    <module> (job/train.py:9)\n"
        "\n"
        "rank 3  step 20, unknown, moving\n"
        "    no stack: py-spy is not installed\n"
        "\n"
        "ranks 0, 2  step 20, waiting in a collective, has not moved, by py-spy\n"
        "    barrier (distributed/distributed_c10d.py:5)  x()\n"
        "    <module> (job/train.py:9)"
    )


def going_on(rank: int, *steps: int) -> Stacks:
    """Return what is seen of a rank that sleeps in each step, at two looks."""
    seen = of(rank, SLEEP, MAIN)
    looks = zip(seen.looks, steps, strict=True)
    said = tuple(replace(look, step=step, phase=1, lasted=0.3) for look, step in looks)
    return replace(seen, looks=said)


def test_ranks_at_one_place_in_different_steps_are_one_line() -> None:
    found = answer(*(going_on(rank, 30 + rank, 31 + rank) for rank in range(4)))

    assert list(stacks.stack_lines(found, all_threads=False)) == [
        "trainer: no rank waits for another: ranks 0-3 go from step to step",
        "",
        "ranks 0-3  steps 31-34, waiting, moving, by py-spy",
        "    load (job/train.py:32)  time.sleep(9)",
        "    <module> (job/train.py:9)",
    ]


def test_ranks_at_one_place_that_are_not_about_the_same_have_a_line_each() -> None:
    found = answer(going_on(0, 30, 31), of(1, SLEEP, MAIN))

    assert list(stacks.stack_lines(found, all_threads=False))[2:4] == [
        "rank 0  step 31, waiting, moving, by py-spy",
        "rank 1  step 20, waiting, has not moved, by py-spy",
    ]


def test_before_there_are_ranks_it_is_said_so() -> None:
    assert list(stacks.stack_lines({**answer(), "roles": []}, all_threads=False)) == [
        "the job has no ranks yet: stacks can be taken once they have started"
    ]


def test_a_terminal_gets_sentences_in_several_lines_and_calls_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    long = replace(SLEEP, text="x" * 100)

    lines = [
        part
        for line in stacks.stack_lines(answer(of(0, BARRIER, MAIN), of(1, long, MAIN)), False)
        for part in stacks.fitted(line).split("\n")
    ]

    assert max(map(len, lines)) <= 80
    assert lines[:3] == [
        "trainer: rank 1 stands still in load (job/train.py:32) while rank 0 waits for",
        "  its peers in barrier (distributed/distributed_c10d.py:5) from <module>",
        "  (job/train.py:9)",
    ]
    assert f"    load (job/train.py:32)  {'x' * 51}…" in lines


def test_all_threads_of_one_rank_are_printed_with_whole_paths() -> None:
    found = stacks.narrowed(answer(), 1)

    assert list(stacks.stack_lines(found, all_threads=True))[1:] == [
        "",
        "rank 1  step 20, waiting, has not moved, by py-spy",
        "  MainThread (main)",
        "    load (/job/train.py:32)  time.sleep(9)",
        "    <module> (/job/train.py:9)",
        "  unnamed thread",
        "    load (/job/train.py:32)  time.sleep(9)",
    ]


@pytest.mark.parametrize("rank", [None, 1, 3])
def test_what_is_printed_keeps_to_its_schema(rank: int | None) -> None:
    found = answer() if rank is None else stacks.narrowed(answer(), rank)

    assert problems("inspect-stacks", found) == []
    assert problems("inspect-stacks", {**found, "taken": "kept", "time": None, "roles": []}) == []


@pytest.fixture
def plane(state: Path, tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path / "db") as found:
        found.job("train-1")
        yield found


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train-1", "tea"], "no view 'tea'"),
        (["train-1", "stacks", "--yaml"], "--yaml is for audit"),
        (["train-1", "audit", "--rank", "1"], "--rank and --threads are for stacks"),
        (["nobody", "stacks"], "no job 'nobody'"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    words: list[str], complaint: str, plane: Plane, capsys: Captured
) -> None:
    code = main(["inspect", *words])

    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert complaint in captured.err


def test_of_a_job_that_ended_without_a_verdict_there_is_nothing(
    plane: Plane, capsys: Captured
) -> None:
    plane.end("train-1", "COMPLETED", "ranks_ended")
    until(lambda: plane.rows("SELECT state FROM jobs") == [("COMPLETED",)])

    code = main(["inspect", "train-1", "stacks"])

    out = capsys.readouterr().out
    assert (code, out) == (0, "the job has ended, and no stacks were stored\n")
    assert main(["inspect", "train-1", "stacks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["roles"] == []
