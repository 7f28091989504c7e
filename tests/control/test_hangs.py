"""A rank gets stuck: the plane finds out which and why, and ends it late, alone, for a reason."""

import contextlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door
from torchloom.errors import UserError

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
LIMIT = 4.0  # seconds

Start = Callable[..., Job]


def events(job: Job, *kinds: str) -> list[dict[str, Any]]:
    """Return what the plane has noted of a job, of these kinds; nothing before it knows it."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(UserError):
        found = door.ask("events", job=job.id, limit=1000)["items"]
    return [item for item in found if item["kind"] in kinds and item["from"] == "weaver"]


def exits(job: Job) -> dict[int, tuple[int, float]]:
    """Return how and when the ranks' first lives ended, as their launch process wrote it."""
    path = Path(os.environ["LOOM_HOME"], "runs", job.id, "events.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        line["local_rank"]: (line["code"], datetime.fromisoformat(line["time"]).timestamp())
        for line in lines
        if line["event"] == "exit" and line["attempt"] == 0
    }


def last_step(job: Job, rank: int) -> tuple[int, float]:
    """Return the last step of a rank's first life, and when it was done, by its own file."""
    row = job.rows(rank)[-1]
    return row.step, row.time


def state_of(pid: int) -> str:
    """Return the kernel's letter for a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_rank_that_stands_is_ended_at_its_limit_and_the_job_starts_again(start: Start) -> None:
    job = start("stuck.py", 3, retries=1, HOW="sleep", STEPPING="api", LOOM_HANG_LIMIT=LIMIT)

    until(lambda: all(len(job.lines(f"{rank}.1")) > 25 for rank in range(3)), PATIENCE)

    ends = exits(job)
    step, when = last_step(job, 1)
    assert [code for _, (code, _) in sorted(ends.items()) if code == -9] == [-9]
    assert ends[1][0] == -9
    assert step == 19
    assert LIMIT <= ends[1][1] - when < LIMIT + PATIENCE / 4
    (kill,) = events(job, "kill")
    assert (kill["rank"], kill["reason"]) == (1, "hang_rank_1")
    (verdict,) = events(job, "verdict")
    assert (verdict["rank"], verdict["facts"]["culprits"]) == (1, [1])
    (stack,) = (one for one in verdict["facts"]["stacks"] if one["ranks"] == [1])
    assert stack["frames"][0].startswith("get_stuck (scripts/stuck.py:")


def test_a_script_that_knows_nothing_of_us_is_only_told_of(start: Start) -> None:
    job = start("stuck.py", 3, HOW="sleep", STEPPING="attached", LOOM_HANG_LIMIT=LIMIT)

    until(lambda: events(job, "hang"), PATIENCE)
    until(lambda: job.ranks()[1]["silent_seconds"] > 2 * LIMIT, PATIENCE)

    (told,) = events(job, "hang")
    assert (told["rank"], told["reason"]) == (1, "hang_rank_1")
    assert told["facts"]["words"].startswith("rank 1 stands still in get_stuck (scripts/stuck.py:")
    assert events(job, "kill") == []
    assert exits(job) == {}
    assert [state_of(job.pid(rank)) for rank in range(3)] == ["S", "S", "S"]


def test_a_rank_that_computes_for_long_is_suspect_at_most(start: Start) -> None:
    job = start("stuck.py", 3, HOW="regex", STEPPING="api", LOOM_HANG_LIMIT=1)

    until(lambda: job.step(1) > 60, PATIENCE)

    rows = job.rows(1)
    assert rows[20].time - rows[19].time > 3.0
    assert events(job, "kill", "hang") == []
    assert exits(job) == {}
    assert all(item["facts"]["culprits"] == [] for item in events(job, "verdict"))


@pytest.mark.parametrize("nap", [0.3, 2.0])  # seconds: shorter and longer than between two looks
def test_ranks_that_sleep_in_every_step_are_not_said_to_stand(nap: float, start: Start) -> None:
    job = start("stuck.py", 2, HOW="no", STEPPING="attached", NAP=nap).ready()
    job.passes(2)

    found = [json.loads(loom("inspect", job.id, "stacks", "--json")) for _ in range(3)]
    shown = loom("inspect", job.id, "stacks")

    assert {role["verdict"]["culprits"] == [] for one in found for role in one["roles"]} == {True}
    assert "stand" not in " ".join(one["roles"][0]["verdict"]["words"] for one in found)
    seen = [rank for one in found for rank in one["roles"][0]["ranks"]]
    assert {rank["moved"] for rank in seen if rank["kind"] == "waiting"} == {True}
    assert "stand" not in shown
    assert events(job, "hang", "kill") == []


def test_a_stopped_rank_is_found_out_and_stacks_are_shown(start: Start) -> None:
    job = start("stuck.py", 3, HOW="stopped", STEPPING="attached", LOOM_HANG_LIMIT=1000)
    until(lambda: events(job, "verdict"), PATIENCE)

    found = json.loads(loom("inspect", job.id, "stacks", "--json"))
    shown = loom("inspect", job.id, "stacks", "--rank", "1")

    (role,) = found["roles"]
    assert (role["verdict"]["culprits"], role["verdict"]["kind"]) == ([1], "stopped")
    seen = {one["rank"]: (one["state"], one["threadlet"]) for one in role["ranks"]}
    assert seen == {0: ("S", True), 1: ("T", False), 2: ("S", True)}
    assert "rank 1  step 20, stopped, has not moved, by py-spy" in shown
    assert "os.kill(os.getpid(), signal.SIGSTOP)" in shown
    assert state_of(job.pid(1)) == "T"  # a look changes nothing
    assert events(job, "kill", "hang") == []
