"""Two people on hosts of their own, a plane on a third: who may look, who may steer, who is who."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..control.conftest import living
from ..harness.cluster import Cluster
from ..harness.home import allowed, until
from ..harness.http_door import LEARN, SCRIPTS, notes
from ..harness.plane_jobs import LOOM, PATIENCE

pytestmark = pytest.mark.process
WORLD = range(2)
BEFORE, AFTER = 0.05, 0.125  # learning rates


class Person:
    """Somebody with a home and a host of their own, and a unix user where that can be."""

    def __init__(self, cluster: Cluster, host: str, name: str, uid: int) -> None:
        self._cluster, self._host, self.name = cluster, host, name
        self._words, self.uid = self._become(uid), uid
        if self.loom("--version").returncode:  # installed where no other user can come
            self._words, self.uid = self._become(0), 0

    def _become(self, uid: int) -> list[str]:
        place = [f"/run/{self.name}", str(uid), sys.base_prefix]
        return ["unshare", "--mount", "sh", str(SCRIPTS / "person.sh"), *place]

    def run(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return self._cluster.run(
            self._host, [*self._words, *words], cwd="/", timeout=PATIENCE, stdin=stdin
        )

    def loom(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return self.run(LOOM, *words, stdin=stdin)

    def well(self, *words: str) -> str:
        """Return what a command printed that must have worked."""
        done = self.loom(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def enter(self, way: "Way") -> "subprocess.CompletedProcess[str]":
        """Log in with a link."""
        return self.loom("login", way.url, "--fingerprint", way.fingerprint, stdin=way.link)

    def follow(self, job: str) -> "Follower":
        """Open a job's stream."""
        words = [*self._words, sys.executable, str(SCRIPTS / "follow.py"), job]
        return Follower(self._cluster.popen(self._host, words, cwd="/"))

    def leave(self) -> None:
        self._cluster.run(
            self._host, ["rm", "-rf", f"/run/{self.name}", f"/run/{self.name}.python"]
        )


class Follower:
    """Somebody's open stream: what has come of it so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._said: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(json.loads(line))

    def hears(self, **facts: Any) -> dict[str, Any]:
        """Return a message that says this; it must come."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found.extend(said for said in tuple(self._said) if facts.items() <= said.items())
            return bool(found)

        until(has_come, PATIENCE)
        return found[0]


class Way:
    """What an admin hands to somebody: a link, and how the plane is known."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.link: str = told["url"]
        self.url = self.link.partition("/login")[0]
        self.fingerprint: str = told["fingerprint"]


class Office:
    """The plane on `ctl`, and its admin, who sits there."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.loom("up", "--trust-operators", "--host", cluster.addresses["ctl"])

    def loom(self, *words: str) -> str:
        done = self._cluster.run("ctl", [LOOM, *words], {"LOOM_DEVICES": "cpu:4"}, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def invite(self, name: str, role: str) -> Way:
        return Way(json.loads(self.loom("tokens", "link", name, "--role", role, "--json")))

    def submit(self, script: Path | str, **env: object) -> str:
        """Submit a job of two ranks; return its id."""
        told = {key: str(value) for key, value in env.items()}
        spec = {"name": "shared", "script": str(script), "env": told}
        workers = {"resources": {"workers": len(WORLD)}}
        (self._folder / "work" / "job.json").write_text(json.dumps({**spec, **workers}))
        return str(json.loads(self.loom("run", "-d", "--json", "job.json"))["id"])

    def commands(self, job: str) -> list[tuple[Any, ...]]:
        """Read who changed a job and when from the database, with nothing of ours between."""
        path = self._folder / "loom" / "plane" / "state.db"
        words = "SELECT author, state, effective FROM commands WHERE job = ? ORDER BY number"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return base.execute(words, (job,)).fetchall()


@pytest.fixture
def office(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
        monkeypatch.setenv(variable, str(folder / name))
    for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOOM_WARM", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(folder / "work")
    made = Office(cluster, folder)
    yield made
    for job in door.ask("jobs", active=True):
        made.loom("stop", "--now", job["id"])
    door.leave()
    until(lambda: not living(folder), PATIENCE)


@pytest.fixture
def person(cluster: Cluster) -> Iterator[Callable[..., Person]]:
    """Give people, each on a host of their own; their homes go with them."""
    people: list[Person] = []

    def come(name: str) -> Person:
        number = 1 + len(people)
        people.append(Person(cluster, f"n{number}", name, 60_000 + number))
        return people[-1]

    yield come
    for one in people:
        one.leave()


def rates(folder: Path, rank: int) -> dict[int, float]:
    """Return which learning rate a rank used in which step, by its own file."""
    return {step: rate for step, rate, *_ in notes(folder, rank)[1:]}


@pytest.mark.needs("torch")
def test_alice_looks_and_may_not_steer_and_bob_steers_all_ranks_under_his_own_name(
    office: Office, person: Callable[..., Person], folder: Path
) -> None:
    alice, bob = person("alice"), person("bob")
    entered = [alice.enter(office.invite("alice", "viewer"))]
    entered += [bob.enter(office.invite("bob", "operator"))]
    job = office.submit(LEARN, OUT=folder)
    until(lambda: all(len(notes(folder, rank)) > 1 for rank in WORLD), PATIENCE)

    listed = json.loads(alice.well("ls", "--json"))
    shown = json.loads(alice.well("show", job, "--json"))
    logs = alice.well("logs", job)
    follower = alice.follow(job)
    for rank in WORLD:
        follower.hears(type="metric", rank=rank)
    refused = alice.loom("set", job, f"lr={AFTER}")
    changed = bob.loom("set", job, f"lr={AFTER}", "--json")
    follower.hears(type="event", author="bob", job=job)
    step = json.loads(changed.stdout)["effective_step"] if not changed.returncode else -1
    until(lambda: all(max(rates(folder, rank)) > step for rank in WORLD), PATIENCE)
    audit = json.loads(office.loom("inspect", job, "audit", "--json"))
    (folder / "enough").touch()
    until(lambda: door.ask("job", job=job)["state"] == "COMPLETED", PATIENCE)

    assert [done.stdout.split(" as ")[-1] for done in entered] == [
        "alice (viewer)\n",
        "bob (operator)\n",
    ]
    assert [(one["id"], one["state"]) for one in listed] == [(job, "RUNNING")]
    assert (shown["id"], len(shown["ranks"])) == (job, len(WORLD))
    assert {"[0] rank 0 begins", "[1] rank 1 begins"} <= set(logs.splitlines())
    assert refused.returncode == 2
    assert "alice is viewer, and this takes operator" in refused.stderr
    assert changed.returncode == 0, changed.stderr
    for rank in WORLD:
        used = rates(folder, rank)
        assert used == {at: BEFORE if at < step else AFTER for at in range(len(used))}
    assert [(one["author"], one["state"], one["effective_step"]) for one in audit] == [
        ("bob", "applied", step)
    ]
    assert office.commands(job) == [("bob", "applied", step)]


def test_a_plane_is_known_by_its_fingerprint_and_a_link_is_good_once_and_a_token_until_revoked(
    office: Office, person: Callable[..., Person], folder: Path
) -> None:
    alice, mallory = person("alice"), person("mallory")
    way = office.invite("alice", "viewer")
    job = office.submit("note.py", STARTS=folder / "starts", SECONDS=300)

    wrong = alice.loom("login", way.url, "--fingerprint", "0" * 64, stdin=way.link)
    unpinned = alice.loom("login", way.url, stdin=way.link)
    first = alice.enter(way)
    second = mallory.enter(way)
    peeked = mallory.run("cat", str(folder / "loom" / "plane" / "admin.token"))
    follower = alice.follow(job)
    follower.hears(type="state")
    (token,) = json.loads(office.loom("tokens", "ls", "alice", "--json"))
    office.loom("tokens", "revoke", token["id"])
    revoked = time.monotonic()
    closed = follower.hears(type="closed")
    after = alice.loom("ls")

    assert [done.returncode for done in (wrong, unpinned, first, second)] == [1, 2, 0, 2]
    assert way.fingerprint in wrong.stderr
    assert way.fingerprint in unpinned.stderr
    assert "used" in second.stderr
    assert peeked.returncode != 0 or not mallory.uid
    assert closed["code"] == 4401
    assert closed["at"] - revoked < allowed(5)
    assert after.returncode == 2
    assert "no token, or an unknown one" in after.stderr
