"""Real ranks over gloo, heard over a WebSocket: what each logged is told to a client once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from torchloom.client import plane as client

from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job, Plane

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2


@pytest.fixture
def url(plane: Plane, tmp_path: Path) -> Iterator[str]:
    """Run a server of the module's plane; return where it answers to WebSockets."""
    runtime = tmp_path / "server"
    runtime.mkdir(mode=0o700)
    words = ["--port", "0", "--runtime", str(runtime), "--door", str(client.door())]
    command = [sys.executable, "-P", "-m", "torchloom.server", *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until((runtime / "server.json").exists, PATIENCE)
        yield json.loads((runtime / "server.json").read_text())["url"].replace("http", "ws", 1)
        process.kill()


def heard(url: str, path: str, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return what a client is told up to a message."""
    token = Path(os.environ["LOOM_HOME"], "plane", "admin.token").read_text().strip()
    found: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {token}"}
    with connect(url + path, additional_headers=headers, close_timeout=0.1) as socket:
        while not found or not is_last(found[-1]):
            found.append(json.loads(socket.recv(PATIENCE)))
    return found


def test_what_ranks_log_is_what_a_client_hears_across_a_second_visit(
    start: Callable[..., Job], url: str
) -> None:
    job = start("logged.py", WORLD).ready()
    path = f"/api/jobs/{job.id}/stream?types=metric,state&after="
    first = heard(url, f"{path}start", lambda said: said.get("step", 0) >= 20)
    job.passes(20)
    job.stop()
    until(lambda: _is_over(job), PATIENCE)
    second = heard(url, path + first[-1]["cursor"], _is_final)

    told = [
        (each["rank"], each["step"], each["loss"], each["half"])
        for each in [*first, *second]
        if "loss" in each
    ]
    logged = [
        (rank, row.step, pytest.approx(row.used["loss"]), row.used["half"])
        for rank in range(WORLD)
        for row in job.rows(rank)
    ]
    assert sorted(told) == logged
    states = [each["status"] for each in [*first, *second] if each["type"] == "state"]
    assert (states[0], states[-1]) == ("RUNNING", "COMPLETED")


def _is_over(job: Job) -> bool:

    return bool(client.ask("job", job=job.id)["state"] == "COMPLETED")


def _is_final(said: dict[str, Any]) -> bool:
    return bool(said.get("status") == "COMPLETED")
