"""A device fails: exactly the replica groups that use it are acted on, and soon."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from torchloom.client import plane as door

from ..harness import evidence
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Job, Plane, loom

pytestmark = pytest.mark.process
GROUPS = ("A", "A", "B", "B")  # of ranks 0 to 3: A0 A1 B0 B1
LIMIT = 30.0  # seconds; what it takes is recorded, not asserted closely

Members = Mapping[int, "subprocess.Popen[bytes]"]


@pytest.fixture
def begin(plane: Plane, tmp_path: Path) -> Iterator[Callable[..., Members]]:
    """Start a job's ranks as another launcher would, each on a device of its own."""
    with contextlib.ExitStack() as stack:

        def start(job: str, recovery: str = "live") -> Members:
            started = {}
            for rank in range(len(GROUPS)):
                env = {"LOOM_JOB": job, "RANK": str(rank), "WORLD_SIZE": str(len(GROUPS))}
                env |= {"LOOM_REPLICA": GROUPS[rank], "LOOM_DEVICES": f"{job}/cpu/{rank}"}
                env |= {"LOOM_AGENT": str(door.folder() / "agent.sock"), "RECOVERY": recovery}
                env |= {"OUT": str(tmp_path / f"{job}-{rank}"), "LOCAL_RANK": str(rank)}
                words = [sys.executable, str(SCRIPTS / "member.py")]
                started[rank] = subprocess.Popen(words, env={**os.environ, **env})
                stack.callback(started[rank].wait)
                stack.callback(started[rank].kill)
            until(lambda: _devices_of(job) == {f"{job}/cpu/{rank}" for rank in started}, PATIENCE)
            until(lambda: all((tmp_path / f"{job}-{rank}").exists() for rank in started), PATIENCE)
            until(lambda: "policy" in door.ask("job", job=job)["facts"], PATIENCE)
            return started

        yield start


def _devices_of(job: str) -> set[str]:
    """Return the devices on which the plane has this job's ranks."""
    devices = door.ask("devices")["devices"]
    return {one["uuid"] for one in devices if any(job in name for name in one["processes"])}


def dead(members: Members) -> dict[int, int]:
    """Return who has ended, and how."""
    codes = {rank: process.poll() for rank, process in members.items()}
    return {rank: code for rank, code in codes.items() if code is not None}


def steps(tmp_path: Path, job: str, rank: int) -> int:
    return (tmp_path / f"{job}-{rank}").read_bytes().count(b"\n")


def goes_on(tmp_path: Path, job: str, ranks: tuple[int, ...]) -> None:
    """Come back when these ranks have done more steps, by their own files."""
    goals = {rank: steps(tmp_path, job, rank) + 20 for rank in ranks}
    until(lambda: all(steps(tmp_path, job, rank) >= goal for rank, goal in goals.items()))


def test_a_failed_device_ends_the_replica_group_that_uses_it_and_nobody_else(
    begin: Callable[..., Members], tmp_path: Path
) -> None:
    hit, other = begin("hit"), begin("other")

    said = loom("devices", "fail", "hit/cpu/1", "--reason", "xid 79")
    until(lambda: len(dead(hit)) >= 2, LIMIT)
    goes_on(tmp_path, "hit", (2, 3))
    goes_on(tmp_path, "other", (0, 1, 2, 3))

    assert said == "hit/cpu/1 is failed; used by hit/trainer/1\n"
    assert dead(hit) == {0: -9, 1: -9}
    assert dead(other) == {}
    kills = [item for item in door.ask("events", job="hit")["items"] if item["kind"] == "kill"]
    assert [(item["rank"], item["reason"]) for item in kills] == [
        (0, "device_failed_hit/cpu/1"),
        (1, "device_failed_hit/cpu/1"),
    ]


def test_a_job_that_is_to_fail_then_is_ended_as_a_whole_and_others_are_not(
    begin: Callable[..., Members], tmp_path: Path
) -> None:
    whole, other = begin("whole", "fail"), begin("rest", "fail")

    loom("devices", "fail", "whole/cpu/3")
    until(lambda: len(dead(whole)) == len(GROUPS), LIMIT)
    goes_on(tmp_path, "rest", (0, 1, 2, 3))

    assert set(dead(whole).values()) == {-9}
    assert dead(other) == {}


@pytest.mark.needs("torch")
def test_a_launched_job_on_a_failed_device_starts_again_and_others_do_not(
    start: Callable[..., Job],
) -> None:
    job, other = start("apart.py", 3, retries=1).ready(), start("apart.py", 2, retries=1).ready()
    device = f"{os.uname().nodename}/cpu/2"  # the other has no third rank

    said = loom("devices", "fail", device)
    until(lambda: all(len(job.lines(f"{rank}.1")) > 5 for rank in range(3)), PATIENCE)
    loom("devices", "recover", device)
    other.passes(20)

    assert said == f"{device} is failed; used by {job.id}/apart/2\n"
    events = door.ask("events", job=job.id)["items"]
    kills = [(item["rank"], item["reason"]) for item in events if item["kind"] == "kill"]
    assert kills == [(2, f"device_failed_{device}")]
    assert [path.name for path in sorted(other.out.iterdir())] == ["rank-0", "rank-1"]


def test_a_device_that_nobody_uses_ends_nobody(
    begin: Callable[..., Members], tmp_path: Path
) -> None:
    members = begin("spared")

    loom("devices", "register", "spared/cpu/9")
    said = loom("devices", "fail", "spared/cpu/9")
    loom("devices", "drain", "spared/cpu/1")
    goes_on(tmp_path, "spared", (0, 1, 2, 3))

    assert said == "spared/cpu/9 is failed; used by no rank\n"
    assert dead(members) == {}


@pytest.mark.soak
def test_twenty_failed_devices_are_acted_on_soon(begin: Callable[..., Members]) -> None:
    samples = []
    for at in range(20):
        job = f"timed{at}"
        members = begin(job)
        asked = time.monotonic()
        door.ask("device_event", device=f"{job}/cpu/{at % 4}", state="failed")
        hit = [rank for rank, group in enumerate(GROUPS) if group == GROUPS[at % 4]]
        for rank in hit:
            members[rank].wait(LIMIT)
        samples.append({"rank": at % 4, "seconds": round(time.monotonic() - asked, 4)})
        assert sorted(dead(members)) == hit
        for process in members.values():
            process.kill()

    slowest = max(one["seconds"] for one in samples)
    evidence.write("control-devices", samples, of=20, slowest_seconds=slowest, target=0.2)
