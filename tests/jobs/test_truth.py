"""What became of a job is the same at every door, and in its folder when no plane is left."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door
from torchloom.launch.records import catalog

from ..harness.home import until
from ..harness.http_door import door_of_admin
from ..harness.plane_jobs import LOOM, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
LONG = 180.0
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import torchloom as loom
print("Traceback (most recent call last):\\n  UserWarning: never mind", file=sys.stderr, flush=True)
dist.init_process_group("gloo")
run = loom.init()
model = run.wrap(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in run.steps(int(os.environ["STEPS"])):
    with step:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
    with open(os.environ["OUT"] + os.environ["RANK"], "a") as file:
        file.write(f"{step.number}\\n")
"""
SAME = ("state", "reason", "step")


def seen(job: str) -> dict[str, tuple[Any, ...]]:
    """Return what the verbs say of a job."""
    listed = {one["id"]: one for one in json.loads(loom("ls", "--json"))}[job]
    shown, torchx = (json.loads(loom(verb, job, "--json")) for verb in ("show", "status"))
    found = {"ls": listed, "show": shown, "status": {**torchx, "state": torchx["job_state"]}}
    return {name: tuple(one[key] for key in SAME) for name, one in found.items()}


def at_all_doors(job: str) -> dict[str, tuple[Any, ...]]:
    rest = door_of_admin().ask(f"/api/jobs/{job}")
    asked = {"door": door.ask("job", job=job), "rest": rest}
    return seen(job) | {name: tuple(one[key] for key in SAME) for name, one in asked.items()}


@pytest.fixture
def start(folder: Path) -> Callable[[int], str]:
    (folder / "work" / "train.py").write_text(SCRIPT)

    def run(steps: int) -> str:
        words = ("-n", "2", "-cfg", "policy=fail", "-e", f"OUT={folder / 'out-'}")
        started = loom("run", "--json", *words, "-e", f"STEPS={steps}", "train.py")
        return str(json.loads(started)["id"])

    return run


def test_a_job_that_was_killed_and_one_that_completed_are_told_alike_everywhere(
    plane: Plane, folder: Path, start: Callable[[int], str]
) -> None:
    done = start(12)
    until(lambda: door.ask("job", job=done)["state"] == "COMPLETED", LONG)
    killed = start(100_000)
    steps = folder / "out-1"
    until(lambda: len(steps.read_text().splitlines()) > 20, LONG)
    record = catalog.record(killed)
    assert record is not None
    process = record.ranks[1].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: door.ask("job", job=killed)["state"] == "FAILED", LONG)

    views = {job: at_all_doors(job) for job in (done, killed)}
    words = loom("show", killed)
    loom("down")
    alone = {job: seen(job) for job in (done, killed)}

    assert set(views[done].values()) == {("COMPLETED", "ranks_ended", 12)}
    (told,) = set(views[killed].values())
    last = int(steps.read_text().split()[-1])
    assert told[:2] == ("FAILED", "exit_signal_9_rank_1")
    assert last <= told[2] <= last + 1
    assert {*alone[done].values(), *alone[killed].values()} == {*views[done].values(), told}
    assert "first error:\n[rank1]: rank 1 was killed (SIGKILL)\n" in words
    assert loom("show", killed).endswith(words[words.index("first error:") :])


TELLING = """
import os, time
import torchloom as loom
run = loom.init()
time.sleep(60)
"""


def test_cores_of_ranks_that_any_verb_started_are_not_free_and_their_devices_go_with_them(
    plane: Plane, folder: Path
) -> None:
    (folder / "work" / "telling.py").write_text(TELLING)

    def node() -> dict[str, Any]:
        found: dict[str, Any] = door_of_admin().ask("/api/cluster/workers")["items"][0]
        return found

    def used() -> dict[str, list[str]]:
        found = json.loads(loom("devices", "--json"))
        return {one["uuid"]: one["processes"] for one in found if one["processes"]}

    before, introduced = node(), _devices(plane)
    ran = json.loads(loom("run", "--json", "-n", "2", "telling.py"))["id"]
    env = {**os.environ, "SECONDS": "60", "STARTS": str(folder / "starts")}
    with subprocess.Popen([LOOM, "launch", "-n", "1", "note.py"], env=env) as launch:
        try:
            until(lambda: node()["free"]["cpus"] == before["cpus"] - 3, LONG)
            until(lambda: sum(map(len, used().values())) == 3, LONG)
            busy, devices = node(), used()
        finally:
            launch.terminate()
    loom("stop", "--now", ran)

    assert before["free"]["cpus"] == before["cpus"] == 4
    assert (len(busy["jobs"]), ran in busy["jobs"]) == (2, True)
    users = sorted(name for names in devices.values() for name in names)
    assert len(users) == 3
    assert users[1:] == [f"{ran}/telling/{rank}" for rank in range(2)]
    until(lambda: node()["free"] == before["free"], LONG)
    assert (node()["jobs"], used(), _devices(plane)) == ([], {}, introduced)


def _devices(plane: Plane) -> set[str]:
    with plane.database("state") as base:
        return {uuid for (uuid,) in base.execute("SELECT uuid FROM devices")}
