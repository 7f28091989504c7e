"""Programs meet at MASTER_ADDR:MASTER_PORT of one host, and may listen there themselves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..harness.home import processes_of, until
from ..harness.plane_jobs import PATIENCE, SCRIPTS, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
WAYS = {
    "clients": [[True, "from 1", 2.0], [True, "from 0", 2.0]],
    "master": ["from 1", "from 0"],
    "late_master": ["from 1", "from 0"],
    "unwatched": ["from 1", "from 0"],
    "own_port": [2.0, 2.0],
    "own_url": [2.0, 2.0],
    "rpc": [8, 16],
    "spawn": [["2.0", "2.0"]] * 2,
    "fork": [["2.0", "2.0"]] * 2,
    "listener": ["from 1", "sent"],
    "torchft": [[True, 1]] * 2,
    "jax": [[0, 2, 2, 3.0], [1, 2, 2, 3.0]],
    "jax_there": [[0, 2, 2, 3.0], [1, 2, 2, 3.0]],
}
NEEDS = {"torchft": "torchft", "jax": "jax", "jax_there": "jax"}


@pytest.fixture(scope="module")
def begun(
    plane: Plane, warm: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[str, Path]]]:
    """Give the id and the folder of a job for each way; all are started at once."""
    folder, jobs = tmp_path_factory.mktemp("meeting"), dict[str, tuple[str, Path]]()
    for way in WAYS:
        out = folder / way
        out.mkdir()
        env = {"OUT": out, "JAX_PLATFORMS": "cpu", "WAY": way}
        if way == "unwatched":
            env |= {"WAY": "late_master", "LOOM_ATTACH": "0"}
        words = ["-n", str(WORLD), *(f"-e{name}={value}" for name, value in env.items())]
        started = json.loads(loom("run", "--json", *words, str(SCRIPTS / "meeting.py")))
        jobs[way] = started["id"], out
    yield jobs
    for job, _ in jobs.values():
        if processes_of(job):
            loom("stop", "--now", job)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[pytest.mark.needs(NEEDS[way])] if way in NEEDS else [])
        for way in WAYS
    ],
)
def test_ranks_meet_in_their_own_way(begun: dict[str, tuple[str, Path]], way: str) -> None:
    job, out = begun[way]

    until(lambda: not processes_of(job), PATIENCE)

    assert json.loads(loom("show", "--json", job))["state"] == "COMPLETED", loom("logs", job)
    assert [json.loads((out / f"rank-{rank}").read_text()) for rank in range(WORLD)] == WAYS[way]
