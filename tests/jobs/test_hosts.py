"""Three agents as three hosts: jobs are placed whole and slots given once, whoever is lost."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door
from torchloom.plane.credentials import credentials

from ..harness.cluster import Cluster
from ..harness.home import until
from ..harness.queue_world import given_twice

pytestmark = pytest.mark.process
CPUS = {"ctl": 1, "n1": 2, "n2": 2, "n3": 2}
JOBS = [(1 + number % 4, number % 3) for number in range(12)]  # workers and priority
LONG = 240.0
RELAY = (sys.executable, "-P", "-m", "torchloom.launch.node_agent")
PLANE = (sys.executable, "-m", "torchloom", "up", "--trust-operators", "--host")


class Nodes:
    """A plane on `ctl` and agents of its on other hosts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._agents: dict[str, subprocess.Popen[str]] = {}

    def up(self) -> None:
        """Start the plane; its own host is a node as well."""
        words = [*PLANE, self._cluster.addresses["ctl"]]
        done = self._cluster.run("ctl", words, {"LOOM_DEVICES": f"cpu:{CPUS['ctl']}"})
        assert done.returncode == 0, done.stderr

    def start(self, host: str) -> None:
        """Start an agent on a host."""
        keys = credentials()
        found = door.find()
        assert found is not None
        words = ["--nats", found["nats"], "--credentials", str(keys.agent(host)), "--agent", host]
        words += ["--authority", str(keys.folder / "authority" / "ca.pem"), "--node", host]
        own = {"LOOM_DEVICES": f"cpu:{CPUS[host]}"}
        log = (self._folder / f"agent-{host}.log").open("a")
        with log:
            self._agents[host] = self._cluster.popen(
                host, [*RELAY, *words, "--runtime", f"/run/agent-{host}"], own, stderr=log
            )

    def kill(self, host: str) -> None:
        self._agents[host].send_signal(signal.SIGKILL)

    def there(self) -> set[str]:
        return {node["id"] for node in door.ask("cluster")["nodes"] if node["state"] == "up"}


class Reader(threading.Thread):
    """Reads the database after every change of it, with nothing of ours between."""

    def __init__(self, folder: Path, needs: dict[str, int]) -> None:
        super().__init__()
        self._folder = folder
        self._needs = needs
        self._is_over = threading.Event()
        self.looks = 0
        self.wrong: Counter[str] = Counter()

    def run(self) -> None:
        path = self._folder / "state.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            before = None
            while not self._is_over.wait(0.002):
                now = base.execute("PRAGMA data_version").fetchone()
                if now != before:
                    before, self.looks = now, self.looks + 1
                    self.wrong.update(given_twice(self._folder, CPUS, dict(self._needs)))

    def stop(self) -> None:
        self._is_over.set()
        self.join()


@pytest.fixture
def nodes(ssh_cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
        monkeypatch.setenv(variable, str(folder / name))
    for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOOM_WARM", "0")
    monkeypatch.chdir(folder / "work")
    found = Nodes(ssh_cluster, folder)
    found.up()
    yield found
    door.leave()


def test_no_slot_is_given_twice_and_no_job_half_placed_while_nodes_are_lost_and_come_back(
    nodes: Nodes, folder: Path, submit: Callable[..., dict[str, Any]], starts: Callable[..., Any]
) -> None:
    for host in ("n1", "n2", "n3"):
        nodes.start(host)
    until(lambda: nodes.there() == set(CPUS), LONG)
    needs: dict[str, int] = {}
    reader = Reader(Path(os.environ["LOOM_HOME"], "plane"), needs)
    reader.start()

    try:
        for number, (workers, priority) in enumerate(JOBS):
            needs[submit("note", workers, 0.3, priority=priority)["id"]] = workers
            if number in (4, 8):
                nodes.kill("n2" if number == 4 else "n3")
        until(lambda: nodes.there() == {"ctl", "n1"}, LONG)
        for host in ("n2", "n3"):
            nodes.start(host)
        until(lambda: nodes.there() == set(CPUS), LONG)
        until(lambda: all(is_over(job) for job in needs), LONG)
    finally:
        reader.stop()

    assert (dict(reader.wrong), reader.looks > len(JOBS)) == ({}, True)
    ended = {job: door.ask("job", job=job)["state"] for job in needs}
    assert ended == dict.fromkeys(needs, "COMPLETED")
    assert Counter(job for job, _ in starts()) == Counter(needs)
    assert len(set(starts())) == sum(needs.values())
    assert {line.split()[2] for line in (folder / "starts").read_text().splitlines()} >= {
        *("n1", "n2", "n3")
    }


def is_over(job: str) -> bool:
    return door.ask("job", job=job)["state"] in ("COMPLETED", "FAILED", "CANCELLED")
