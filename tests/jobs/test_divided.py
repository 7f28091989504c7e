"""Jobs whose ranks divide the model, submitted by HTTP: killed, they end with the same bits."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import Manifest

from ..harness.home import until
from ..harness.http_door import Door, door_of_admin, notes
from ..harness.plane_jobs import PATIENCE, Plane

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
    shape = {"batch_size": 16, "hidden": 16, "layers": 3, "optimizer": "adamw", "dropout": 0.1}
    spec: dict[str, Any] = {
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
    return door.submit(spec, folder)


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
    (place, *_) = (
        row["place"] for row in door.ask(f"/api/jobs/{job}/checkpoints")["items"] if row["place"]
    )
    manifest = Manifest.from_json((Path(place) / "manifest.json").read_text())
    assert manifest.strategy == strategy
    assert manifest.sharding is not None
    assert len(manifest.sharding.tensors) == 8 + 8 * 3


def committed(door: Door, job: str) -> set[int]:
    found = door.ask(f"/api/jobs/{job}/checkpoints")["items"]
    return {row["step"] for row in found if row["state"] == "committed"}
