"""Jobs of other people on a plane: what they have of its environment, and who allows them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cli.conftest import Loom, loom, state, until

__all__ = ["loom", "state"]

pytestmark = pytest.mark.process
CANARY = "canary-5d1f0c"
OF_THE_SHELL = {  # variables of the shell in which the plane is started
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "GITHUB_TOKEN": CANARY,
    "SLURM_JWT": CANARY,
    "NCCL_SECRET": CANARY,
    "MY_OWN_PROJECT": CANARY,
    "https_proxy": f"http://me:{CANARY}@proxy:3128",
}
PASSED = {
    "LC_TIME": "C",
    "NCCL_DEBUG": "WARN",
    "OMP_NUM_THREADS": "3",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "http_proxy": "http://proxy:3128",
    "LOOM_CHECKPOINTS": "/nowhere/else",
}
TELL = """
import json, os, sys
told = {"own": dict(os.environ), "launch": open(f"/proc/{os.getppid()}/environ").read()}
with open(sys.argv[1], "w") as file:
    json.dump(told, file)
"""


@pytest.fixture
def plane(loom: Loom, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loom]:
    """A plane that was started in a shell with secrets."""
    monkeypatch.setenv("LOOM_PLANE", "1")
    up = loom("up", env={**OF_THE_SHELL, **PASSED})
    assert up.returncode == 0, up.stderr
    yield loom
    loom("down")


def written(path: Path) -> dict[str, object]:
    """Wait for what a job writes, whole."""

    def read() -> object:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            return None

    found: dict[str, object] = until(read, str(path))
    return found


def test_a_job_of_the_queue_has_only_what_is_listed_of_the_planes_environment(
    plane: Loom, tmp_path: Path
) -> None:
    Path("tell.py").write_text(TELL)
    spec = {"name": "tell", "script": os.path.abspath("tell.py"), "args": [f"{tmp_path}/out"]}
    Path("job.json").write_text(json.dumps({**spec, "env": {"MINE": "yes"}}))

    sent = plane("run", "-d", "job.json")

    assert sent.returncode == 0, sent.stderr
    told = written(tmp_path / "out")
    own = told["own"]
    assert isinstance(own, dict)
    assert CANARY not in json.dumps(told)
    assert OF_THE_SHELL.keys() & own.keys() == set()
    assert {name: own.get(name) for name in PASSED} == PASSED
    assert own["MINE"] == "yes"
    for name in ("PATH", "HOME", "LOOM_HOME", "XDG_RUNTIME_DIR"):
        assert name in own
    plane("show", "--wait", "tell")


def test_a_program_run_from_a_shell_keeps_all_of_that_shell(loom: Loom, tmp_path: Path) -> None:
    Path("tell.py").write_text(TELL)

    done = loom("run", "tell.py", f"{tmp_path}/out", env=OF_THE_SHELL)

    assert done.returncode == 0, done.stderr
    own = written(tmp_path / "out")["own"]
    assert isinstance(own, dict)
    assert {name: own.get(name) for name in OF_THE_SHELL} == OF_THE_SHELL


def test_a_plane_for_other_hosts_is_refused_until_its_operators_are_trusted(loom: Loom) -> None:
    refused = loom("up", "--host", "127.0.0.2")

    assert refused.returncode == 2
    said = refused.stderr.decode()
    assert "jobs of operators run as you" in said
    assert "admin.token" in said
    assert "loom up --host 127.0.0.2 --trust-operators" in said
    assert loom.processes() == {}
    assert not (loom.home / "plane").exists()

    started = loom("up", "--host", "127.0.0.2", "--trust-operators", "--json")
    try:
        assert started.returncode == 0, started.stderr
        assert json.loads(started.stdout)["nats"].startswith("tls://127.0.0.2:")
    finally:
        loom("down")
