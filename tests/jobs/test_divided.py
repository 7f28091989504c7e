"""Jobs whose ranks divide the model, submitted by HTTP: killed, they end with the same bits."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import Manifest

from ..harness.home import until
from ..harness.http_door import Door, door_of_admin, notes
from ..harness.plane_jobs import PATIENCE, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SCRIPT = Path(__file__).with_name("scripts") / "noted.py"
WORLD, EVERY, HOLD = 4, 3, 7
STRATEGIES = [
    "hybrid",
    *(
        pytest.param(name, marks=pytest.mark.soak)
        for name in ("fsdp", "hsdp", "tensor_parallel", "pipeline_parallel")
    ),
]


def submitted(door: Door, strategy: str, folder: Path, hold: int) -> str:
    """Submit a ready-made training that saves; return its id."""
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    return door.submit(spec_of(strategy, folder, hold), folder)


def spec_of(strategy: str, folder: Path, hold: int) -> dict[str, Any]:
    shape = {"batch_size": 16, "hidden": 16, "layers": 3, "optimizer": "adamw", "dropout": 0.1}
    return {
        "name": strategy.replace("_", "-"),
        "model": "mlp",
        "dataset": "module:noted.samples",
        "hyperparameters": {**shape, "eval_fraction": 0},
        "distributed": {"strategy": strategy, "backend": "gloo"},
        "resources": {"workers": WORLD},
        "checkpointing": {"enabled": True, "every_n_steps": EVERY},
        "env": {"OUT": str(folder), "HOLD": str(hold)},
        "seed": 5,
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_killed_job_ends_with_the_bits_of_an_undisturbed_one(
    strategy: str, plane: Plane, tmp_path: Path
) -> None:
    door = door_of_admin()
    calm, struck = tmp_path / "calm", tmp_path / "struck"

    ended = door.ends(submitted(door, strategy, calm, 0))
    job = submitted(door, strategy, struck, HOLD)
    until(lambda: all(len(notes(struck, rank)) == HOLD for rank in range(WORLD)), PATIENCE)
    until(lambda: committed(door, job) >= {EVERY, 2 * EVERY}, PATIENCE)
    os.kill(notes(struck, 1)[-1]["pid"], signal.SIGKILL)
    (struck / "go").touch()
    again = door.ends(job)

    assert (ended["status"], again["status"]) == ("COMPLETED", "COMPLETED")
    for rank in range(WORLD):
        undisturbed, rows = notes(calm, rank), notes(struck, rank)
        assert len({row["pid"] for row in rows}) == 2  # it was restarted
        rest = [row["digest"] for row in rows if row["pid"] == rows[-1]["pid"]]
        assert rest == [row["digest"] for row in undisturbed[2 * EVERY :]]
    manifest = newest(door, job)
    assert manifest.strategy == strategy
    assert manifest.sharding is not None
    assert len(manifest.sharding.tensors) == 8 + 8 * 3


@pytest.mark.soak
def test_a_released_job_goes_on_with_the_bits_of_an_undisturbed_one(
    plane: Plane, tmp_path: Path
) -> None:
    door = door_of_admin()
    calm, struck = tmp_path / "calm", tmp_path / "struck"

    door.ends(submitted(door, "hsdp", calm, 0))
    job = submitted(door, "hsdp", struck, HOLD)
    until(lambda: all(len(notes(struck, rank)) == HOLD for rank in range(WORLD)), PATIENCE)
    loom("pause", "--release", "--at", str(HOLD + 1), "--wait", "0", job)
    (struck / "go").touch()
    until(lambda: door.ask(f"/api/jobs/{job}")["status"] == "PAUSED", PATIENCE)
    until(lambda: HOLD + 1 in committed(door, job), PATIENCE)
    loom("resume", job, "--json")
    ended = door.ends(job)

    assert ended["status"] == "COMPLETED"
    for rank in range(WORLD):
        undisturbed, rows = notes(calm, rank), notes(struck, rank)
        assert [row["digest"] for row in rows] == [row["digest"] for row in undisturbed]
        assert len({row["pid"] for row in rows}) == 2


@pytest.mark.soak
@pytest.mark.parametrize("how", ["submitted", "launched"])
def test_a_job_resumes_on_another_mesh(
    how: str, plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = door_of_admin()
    folder = tmp_path / "out"
    if how == "submitted":
        job = submitted(door, "fsdp", folder, HOLD)
    else:
        folder.mkdir()
        shutil.copy(SCRIPT, folder)
        (folder / "job.json").write_text(json.dumps(spec_of("fsdp", folder, HOLD)))
        monkeypatch.chdir(folder)
        job = json.loads(loom("run", "--json", "job.json"))["id"]
    until(lambda: all(len(notes(folder, rank)) == HOLD for rank in range(WORLD)), PATIENCE)
    loom("stop", "--at", str(HOLD + 1), "--no-wait", job)
    (folder / "go").touch()
    door.ends(job)

    asked = ("-n", "2", "--strategy", "tensor_parallel", "--from", str(2 * EVERY))
    loom("resume", job, *asked, "--json")
    until(lambda: door.ask(f"/api/jobs/{job}")["attempt"] > 1, PATIENCE)
    ended = door.ends(job)

    assert ended["status"] == "COMPLETED"
    found = door.ask(f"/api/jobs/{job}/events", limit=1000)["items"]
    restored = [event["facts"] for event in found if event["kind"] == "restored"]
    assert restored[-1]["exact"] is False
    assert "world size 4 -> 2" in restored[-1]["why"]
    manifest = newest(door, job)
    assert (manifest.strategy, manifest.sharding and manifest.sharding.mesh["tp"]) == (
        "tensor_parallel",
        2,
    )


def committed(door: Door, job: str) -> set[int]:
    found = door.ask(f"/api/jobs/{job}/checkpoints")["items"]
    return {row["step"] for row in found if row["state"] == "committed"}


def newest(door: Door, job: str) -> Manifest:
    """Return the manifest of a job's newest checkpoint, read from its folder."""
    found = door.ask(f"/api/jobs/{job}/checkpoints")["items"]
    place = max((row["step"], row["place"]) for row in found if row["state"] == "committed")[1]
    return Manifest.from_json((Path(place) / "manifest.json").read_text())
