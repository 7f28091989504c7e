"""What a job's spec may put into the environment of its ranks, and what comes from elsewhere."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.specs.validate import SET_FOR_ALL, SET_FOR_PEERS

from ..cli.conftest import Loom, loom, state
from ..harness.server_plane import Plane, Server, running

__all__ = ["loom", "state"]

pytestmark = pytest.mark.process
ALLOWED = {  # documented settings, and names that only look alike
    "LOOM_ATTACH": "0",
    "LOOM_CHECKPOINTS": "/data",
    "LOOM_HANG": "off",
    "LOOM_HANG_LIMIT": "900",
    "LOOM_WARM": "0",
    "LOOM_TORCHRUN": "real",
    "LOOM_MODULES": "",
    "OMP_NUM_THREADS": "2",
    "RANK_OF_MINE": "1",
    "MY_LOOM_JOB": "x",
}
DEFAULTS = {  # a spec may set these: the launcher sets them only where nothing else does
    *("PYTHONUNBUFFERED", "THP_MEM_ALLOC_ENABLE", "OMP_NUM_THREADS", "RES_OPTIONS"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "PATH", "LC_CTYPE"),
}
OF_ITS_SPEC = {"JAX_COORDINATOR_ADDRESS"}  # a spec may set it: what it says is in force
BY_TORCHX = {"TORCHX_JOB_ID"}  # put over those of the spec
TELL = """
import json, os
with open(os.environ["OUT"] + os.environ["RANK"], "w") as file:
    json.dump(dict(os.environ), file)
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    return plane.start_server()


def test_the_table_has_every_variable_that_a_rank_gets_from_its_launcher(
    loom: Loom, tmp_path: Path
) -> None:
    Path("tell.py").write_text(TELL)

    done = loom("run", "-n", "2", "-e", f"OUT={tmp_path}/out", "tell.py")

    assert done.returncode == 0, done.stderr
    env = json.loads((tmp_path / "out0").read_text())
    set_by_us = {name for name in env if env[name] != os.environ.get(name)} - {"OUT"}
    assert set_by_us - DEFAULTS - BY_TORCHX - OF_ITS_SPEC <= SET_FOR_ALL | SET_FOR_PEERS
    assert set_by_us & SET_FOR_PEERS == SET_FOR_PEERS
    assert set_by_us >= OF_ITS_SPEC


@pytest.mark.parametrize("name", sorted(OF_ITS_SPEC))
def test_what_a_job_says_itself_is_in_force(loom: Loom, tmp_path: Path, name: str) -> None:
    Path("tell.py").write_text(TELL)

    done = loom("run", "-n", "2", "-e", f"{name}=its-own:7", "-e", f"OUT={tmp_path}/out", "tell.py")

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out1").read_text())[name] == "its-own:7"


@pytest.mark.parametrize("name", sorted(SET_FOR_ALL | SET_FOR_PEERS | {"LOOM_PORT_HTTP"}))
def test_a_job_that_sets_what_the_launcher_sets_is_refused_by_field(
    server: Server, name: str
) -> None:
    with server.client() as admin:
        job = {"name": "forged", "command": ["true"], "env": {"FINE": "1", name: "7"}}
        answer = admin.post("/api/jobs", json=job)
        jobs = admin.get("/api/jobs").json()["items"]

    assert answer.status_code == 422
    assert f"env.{name}" in answer.text
    assert "is set by the launcher" in answer.text
    assert jobs == []


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize("engine", ["local", "slurm", "pbs", "lsf"])
def test_every_engine_refuses_it_when_planned_and_when_submitted(
    loom: Loom, verb: str, engine: str
) -> None:
    Path("tell.py").write_text(TELL)
    words = [verb, "-s", engine, "-n", "2", "-e", "MASTER_ADDR=192.0.2.1", "tell.py"]

    done = loom(*words)

    assert done.returncode == 2
    assert b"roles[0].env.MASTER_ADDR: is set by the launcher for every rank" in done.stderr
    assert loom.ids() == []


def test_a_spec_file_and_an_app_are_refused_by_the_same_words(loom: Loom) -> None:
    job = {"name": "forged", "command": ["true"], "env": {"LOOM_AGENT": "/tmp/x"}}
    role = {"name": "r", "image": "", "entrypoint": "true", "env": {"LOOM_STORE": "file:///x"}}
    Path("job.json").write_text(json.dumps(job))
    Path("app.json").write_text(json.dumps({"name": "forged", "roles": [role]}))

    first, second = loom("plan", "job.json"), loom("plan", "app.json")

    assert (first.returncode, second.returncode) == (2, 2)
    assert b"env.LOOM_AGENT: is set by the launcher for every rank" in first.stderr
    assert b"roles[0].env.LOOM_STORE: is set by the launcher for every rank" in second.stderr


def test_documented_settings_and_other_names_reach_the_ranks(loom: Loom, tmp_path: Path) -> None:
    Path("tell.py").write_text(TELL)
    told = [word for pair in ALLOWED.items() for word in ("-e", "=".join(pair))]

    done = loom("run", "-n", "2", *told, "-e", f"OUT={tmp_path}/out", "tell.py")

    assert done.returncode == 0, done.stderr
    env = json.loads((tmp_path / "out0").read_text())
    assert {name: env.get(name) for name in ALLOWED} == ALLOWED


def test_a_role_without_ranks_of_ours_may_have_a_rank_of_its_own(
    loom: Loom, tmp_path: Path
) -> None:
    Path("tell.py").write_text(TELL)
    env = {"RANK": "5", "MASTER_ADDR": "10.0.0.1", "OUT": f"{tmp_path}/out"}
    role = {"name": "r", "image": "", "entrypoint": "python", "args": ["tell.py"], "env": env}
    Path("app.json").write_text(json.dumps({"name": "own", "roles": [role]}))

    done = loom("run", "app.json")

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out5").read_text())
    assert (found["RANK"], found["MASTER_ADDR"]) == ("5", "10.0.0.1")
