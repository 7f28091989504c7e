"""`loom inspect JOB stacks`: each stack once, with the ranks that have it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.messages import Frame, Look, Stacks, Thread
from torchloom.cli import stackprint
from torchloom.cli.main import main
from torchloom.weaver.roster import _row as row
from torchloom.weaver.verdicts import role_shape, weigh

from ..living import until
from ..weaver.fakes import register
from .monitored import Plane, plane_in
from .test_json import problems

Captured = pytest.CaptureFixture[str]
BARRIER = Frame("barrier", "/v/site-packages/torch/distributed/distributed_c10d.py", 5, "x()")
MAIN = Frame("<module>", "/job/train.py", 9)
SLEEP = Frame("load", "/job/train.py", 32, "time.sleep(9)")


def of(rank: int, *frames: Frame) -> Stacks:
    threads = (Thread("MainThread", True, frames), Thread("", False, (SLEEP,))) if frames else ()
    source, note = ("py-spy", "") if frames else ("", "py-spy is not installed")
    looks = tuple(Look(at, 1.0, "S", "", source, threads, note) for at in (1.0, 2.0))
    return Stacks(register(rank).head, "node-1", "s", looks)


def answer() -> dict[str, Any]:
    """Return what the weaver says of four ranks."""
    ranks = [row("node-1", register(rank), 0.0) for rank in range(4)]
    seen = [of(0, BARRIER, MAIN), of(1, SLEEP, MAIN), of(2, BARRIER, MAIN), of(3)]
    stacks = {one.head.incarnation: one for one in seen}
    evidence = weigh("trainer", ranks, dict.fromkeys(range(4), 20), stacks)
    time = "2026-01-01T00:00:00.000+00:00"
    return {"job": "j", "taken": "now", "time": time, "roles": [role_shape(evidence)]}


def test_each_stack_is_printed_once_with_its_ranks() -> None:
    assert "\n".join(stackprint.told(answer(), all_threads=False)) == (
        "trainer: rank 1 stands still in load (job/train.py:32) while ranks 0, 2 wait for their"
        " peers in barrier (distributed/distributed_c10d.py:5) from <module> (job/train.py:9)\n"
        "\n"
        "rank 1  step 20, waiting, has not moved, by py-spy\n"
        "    load (job/train.py:32)  time.sleep(9)\n"
        "    <module> (job/train.py:9)\n"
        "\n"
        "rank 3  step 20, unknown, moves\n"
        "    no stack: py-spy is not installed\n"
        "\n"
        "ranks 0, 2  step 20, waiting in a collective, has not moved, by py-spy\n"
        "    barrier (distributed/distributed_c10d.py:5)  x()\n"
        "    <module> (job/train.py:9)"
    )


def test_all_threads_of_one_rank_are_printed_with_whole_paths() -> None:
    found = stackprint.narrowed(answer(), 1)

    assert list(stackprint.told(found, all_threads=True))[1:] == [
        "",
        "rank 1  step 20, waiting, has not moved, by py-spy",
        "  MainThread (main)",
        "    load (/job/train.py:32)  time.sleep(9)",
        "    <module> (/job/train.py:9)",
        "  a thread without a name",
        "    load (/job/train.py:32)  time.sleep(9)",
    ]


@pytest.mark.parametrize("rank", [None, 1, 3])
def test_what_is_printed_keeps_to_its_schema(rank: int | None) -> None:
    found = answer() if rank is None else stackprint.narrowed(answer(), rank)

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
    assert (code, out) == (0, "the job has ended, and no stacks of it were kept\n")
    assert main(["inspect", "train-1", "stacks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["roles"] == []
