"""All of a job's life over HTTP: submitted, trained, watched, saved, killed, recovered, recorded.

Once with what comes along (SQLite, this disk), once with Postgres and S3.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blake3
import pytest

from ..control.conftest import living
from ..harness.home import until
from ..harness.http_door import Door, door_of_admin, listening
from ..harness.plane_jobs import PATIENCE, loom
from ..harness.postgres_server import new_database, running_postgres
from ..harness.s3_server import running_s3
from ..jobs.test_submitted import ranks_of

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
EVERY = 60
JOB: dict[str, Any] = {
    "name": "mnist-ddp-demo",
    "framework": "pytorch",
    "model": "mlp",
    "dataset": "synthetic:20480",
    "resources": {"workers": 4, "gpus_per_worker": 0},
    "distributed": {"strategy": "data_parallel", "backend": "gloo"},
    "hyperparameters": {"batch_size": 64, "lr": 0.001, "epochs": 4},
    "checkpointing": {"enabled": True, "every_n_steps": EVERY, "store": "local"},
    "compression": {"enabled": False},
    "recovery": {"policy": "restart"},
}
STEPS = 4 * 20480 * 9 // 10 // 256  # a tenth is held out


@pytest.fixture(params=["embedded", "postgres and s3"])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Give a database, a base for checkpoints ("" for the usual one), and the variables for it."""
    if request.param == "embedded":
        yield "", "", {}
        return
    with running_postgres() as url, running_s3(tmp_path / "s3") as s3:
        yield new_database(url, "plane"), s3.url("saved"), dict(s3.env)


@pytest.fixture
def door(stores: tuple[str, str, dict[str, str]], tmp_path: Path) -> Iterator[Door]:
    """Give the admin's way into a plane of this test's own."""
    database, _, env = stores
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
            (tmp_path / name).mkdir(mode=0o700)
            patch.setenv(variable, str(tmp_path / name))
        for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
            patch.delenv(variable, raising=False)
        for variable, value in env.items():
            patch.setenv(variable, value)
        patch.setenv("LOOM_WARM", "1")
        patch.setenv("LOOM_DATABASE", database)
        patch.setenv("OMP_NUM_THREADS", "1")
        loom("up")
        yield door_of_admin()
        loom("down")
        for pid in living(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        until(lambda: not living(tmp_path), PATIENCE)


def saved(door: Door, job: str) -> list[int]:
    """Return the steps that are committed, newest first, as the API has them."""
    listed = door.ask(f"/api/jobs/{job}/checkpoints")["items"]
    return [one["step"] for one in listed if one["state"] == "committed"]


def test_a_worker_is_killed_and_the_training_goes_on_to_its_end(
    stores: tuple[str, str, dict[str, str]], door: Door, tmp_path: Path
) -> None:
    _, base, _ = stores
    checkpointing = {**JOB["checkpointing"], **({"store": base} if base else {})}
    job = door.submit({**JOB, "checkpointing": checkpointing}, tmp_path)

    with listening(door, job) as listener:
        until(lambda: saved(door, job), PATIENCE)
        first = ranks_of(job)
        os.kill(first[2], signal.SIGKILL)
        ended = door.ends(job)
        until(lambda: ("COMPLETED",) in listener.said("state", "status"), PATIENCE)

    assert (ended["status"], ended["step"], ended["attempt"]) == ("COMPLETED", STEPS, 2)
    reasons = listener.said("state", "status", "reason")
    assert ("RECOVERING", "exit_signal_9_rank_2") in reasons
    steps = {step for _, step in listener.said("metric", "loss", "step")}
    assert steps == set(range(STEPS))
    (again,) = [told for told in listener.heard if told.get("kind") == "resuming"]
    assert again["facts"]["step"] >= EVERY
    run = door.ask(f"/api/experiments/{ended['run_id']}")
    assert run["summary"]["steps"] == STEPS
    whole(stores, tmp_path, job, saved(door, job)[0])


def whole(stores: tuple[str, str, dict[str, str]], folder: Path, job: str, step: int) -> None:
    """Check a committed checkpoint by its files alone: each is as its manifest says."""
    _, base, env = stores
    name = f"ckpt_step_{step:05d}"
    if not base:
        place = folder / "loom" / "runs" / job / "checkpoints" / name
        manifest = json.loads((place / "manifest.json").read_bytes())
        found = {one["name"]: (place / one["name"]).read_bytes() for one in manifest["shards"]}
    else:
        manifest, found = fetched(env, f"{base.removeprefix('s3://')}/{job}/checkpoints/{name}")
    assert (manifest["step"], manifest["world_size"], manifest["job_id"]) == (step, 4, job)
    assert sorted(found) == [f"worker_{rank}.pt" for rank in range(4)]
    for one in manifest["shards"]:
        data = found[one["name"]]
        told = (len(data), f"blake3:{blake3.blake3(data).hexdigest()}")
        assert told == (one["size"], one["hash"])


def fetched(env: dict[str, str], place: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read a checkpoint from S3 by boto-less means: the store's own file listing over obstore."""
    import obstore
    from obstore.store import S3Store

    bucket, _, prefix = place.partition("/")
    endpoint = env.get("AWS_ENDPOINT_URL_S3") or env["AWS_ENDPOINT_URL"]
    store = S3Store(
        bucket,
        endpoint=endpoint,
        access_key_id=env["AWS_ACCESS_KEY_ID"],
        secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        region=env.get("AWS_REGION", "us-east-1"),
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    read = lambda key: bytes(obstore.get(store, key).bytes())  # noqa: E731
    manifest = json.loads(read(f"{prefix}/manifest.json"))
    writer = f"g{manifest['generation']}-{manifest['attempt']}"
    names = [one["name"] for one in manifest["shards"]]
    return manifest, {name: read(f"{prefix}/{writer}/{name}") for name in names}
