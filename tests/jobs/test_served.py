"""A job with parameter servers: killed workers and servers come back, and the bits are the same."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ..harness.home import processes_of, until
from ..harness.http_door import Door, door_of_admin
from ..harness.plane_jobs import PATIENCE, Plane

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORKERS, EVERY = 4, 10
SPEC: dict[str, Any] = {
    "model": "transformer",
    "dataset": "text:song.txt",
    "seed": 3,
    "resources": {"workers": WORKERS},
    "distributed": {"strategy": "parameter_server", "servers": 2},
    "hyperparameters": {"batch_size": 8, "context": 16, "width": 32, "epochs": 12},
    "checkpointing": {"enabled": True, "every_n_steps": EVERY},
}


def roles_of(job: str) -> dict[tuple[str, int], int]:
    """Return the processes of workers and servers, by role and number, by /proc."""
    found = {}
    for pid in processes_of(job):
        try:
            words = Path(f"/proc/{pid}/environ").read_text().split("\0")
        except OSError:
            continue  # it has just ended
        env = dict(word.partition("=")[::2] for word in words)
        if "LOOM_JOB" in env and "RANK" in env:
            found[env["ROLE_NAME"], int(env["RANK"])] = pid
    return found


def lines(log: Path, rank: int) -> list[dict[str, Any]]:
    """Return what a worker has written of its steps; a line being written is left out."""
    path = log / f"rank_{rank}.jsonl"
    return list(map(json.loads, path.read_text().split("\n")[:-1])) if path.exists() else []


def trained(door: Door, folder: Path, name: str, victim: tuple[str, int] | None) -> dict[str, Any]:
    """Train a job, kill one of its processes meanwhile; return the job."""
    log = folder / name
    spec = {"name": name, **SPEC, "env": {"LOOM_LEDGER": str(log), "OMP_NUM_THREADS": "1"}}
    job = door.submit(spec, folder)
    if victim is not None:
        saved = folder.parent / "loom" / "runs" / job / "checkpoints"
        until(lambda: list(saved.glob("ckpt_step_*/manifest.json")), PATIENCE)
        roles = roles_of(job)
        assert sorted(roles) == [("server", 0), ("server", 1), *(("train", at) for at in range(4))]
        os.kill(roles[victim], signal.SIGKILL)
    return door.ends(job)


def test_killed_workers_and_servers_leave_no_trace_in_the_bits(plane: Plane, folder: Path) -> None:
    door, work = door_of_admin(), folder / "work"
    text = "row row row your boat gently down the stream\n" * 260
    (work / "song.txt").write_text(text)

    calm = trained(door, work, "calm", None)
    struck = {
        role: trained(door, work, f"struck-{role}", (role, number))
        for role, number in (("train", 2), ("server", 1))
    }

    assert [job["status"] for job in (calm, *struck.values())] == ["COMPLETED"] * 3
    for rank in range(WORKERS):
        whole = {line["step"]: line["digest"] for line in lines(work / "calm", rank)}
        assert max(whole) >= 3 * EVERY
        for role in struck:
            again = lines(work / f"struck-{role}", rank)
            assert {line["attempt"] for line in again} == {0, 1}
            resumed = next(line["step"] for line in again if line["attempt"] == 1)
            assert resumed >= EVERY - 1  # from a checkpoint, not from the beginning
            assert again[-1]["step"] == max(whole)
            assert all(line["digest"] == whole[line["step"]] for line in again)
