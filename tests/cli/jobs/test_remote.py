"""Two users of a plane elsewhere: one looks and is refused, the other steers and is named."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.cli.monitor.poll import PollRequest, SnapshotReader
from torchloom.client import chosen
from torchloom.client.trust import fingerprint
from torchloom.plane.certificates import certificate

from ...harness.home import until
from ...harness.metric_senders import Teller
from ...harness.server_plane import PATIENCE, Plane, Ranks, Server, running
from ..test_json import problems

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started, Ranks(started):
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    made = certificate(plane.home / "plane", "127.0.0.1")
    words = ["--tls-cert", made.chain, "--tls-key", made.key, "--tls-ca", made.authority]
    return plane.start_server(*map(str, words))


class Person:
    """Somebody with a home of their own who is logged in."""

    def __init__(self, home: Path, plane: Plane, server: Server, name: str, role: str) -> None:
        home.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        self.env |= {"HOME": str(home), "LOOM_HOME": str(home / "loom"), "LOOM_PLANE": "0"}
        self.env["XDG_RUNTIME_DIR"] = str(home)
        self.folder = home
        asyncio.run(plane.ask("user_put", user=name, role=role, author="admin"))
        link = asyncio.run(plane.ask("link_add", user=name, author="admin"))
        known = fingerprint((plane.home / "plane" / "authority" / "ca.pem").read_text())
        given = f"{server.url}/login#{link['code']}"
        done = self.loom("login", server.url, "--fingerprint", known, said=given)
        assert done == (0, f"{server.url} as {name} ({role})\n", "")

    def loom(self, *words: str, said: str = "") -> tuple[int, str, str]:
        command = [sys.executable, "-m", "torchloom", *words]
        done = subprocess.run(
            command,
            input=said,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def alice(plane: Plane, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Person:
    return Person(tmp_path_factory.mktemp("a") / "alice", plane, server, "alice", "viewer")


@pytest.fixture(scope="module")
def bob(plane: Plane, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Person:
    return Person(tmp_path_factory.mktemp("b") / "bob", plane, server, "bob", "operator")


def test_a_viewer_sees_jobs_and_is_refused_in_words(alice: Person) -> None:
    listed = alice.loom("ls", "--json")
    shown = alice.loom("show", "gpt")
    knobs = alice.loom("set")
    refused = alice.loom("set", "gpt", "lr=0.5")

    assert [job["id"] for job in json.loads(listed[1])] == ["job-1"]
    assert problems("ls", json.loads(listed[1])) == []
    assert json.loads(alice.loom("show", "gpt", "--json")[1])["id"] == "job-1"
    assert shown[0] == 0
    assert shown[1].startswith("job    job-1 (gpt)\nstate  RUNNING")
    assert knobs[1].splitlines()[1].split()[0] == "lr"
    assert (refused[0], refused[1]) == (2, "")
    assert refused[2].startswith("loom: alice is viewer, and this takes operator; an admin can")


@pytest.mark.parametrize("verb", ["pause", "resume", "checkpoint", "stop"])
def test_every_verb_that_changes_a_job_is_refused_to_a_viewer(alice: Person, verb: str) -> None:
    code, out, err = alice.loom(verb, "gpt")

    assert (code, out) == (2, "")
    assert "alice is viewer, and this takes operator" in err


def test_an_operators_change_works_and_is_audited_as_his(bob: Person, plane: Plane) -> None:
    code, out, err = bob.loom("set", "gpt", "lr=0.25", "--reason", "try", "--json")

    assert (code, err) == (0, "")
    outcome = json.loads(out)
    assert (outcome["author"], outcome["state"]) == ("bob", "applied")
    audit = asyncio.run(plane.ask("audit", job="job-1"))
    assert [(one["author"], one["reason"], one["after"]) for one in audit][-1] == (
        "bob",
        "try",
        outcome["after"],
    )
    assert bob.loom("set", "gpt", "--undo")[0] == 0


def test_a_name_of_the_other_host_does_not_become_the_author(bob: Person, plane: Plane) -> None:
    before = bob.env.get("USER")
    bob.env["USER"] = bob.env["LOGNAME"] = "root"
    try:
        assert bob.loom("set", "gpt", "lr=0.3")[0] == 0
    finally:
        bob.env["USER"] = bob.env["LOGNAME"] = before or ""

    audit = asyncio.run(plane.ask("audit", job="job-1"))
    assert audit[-1]["author"] == "bob"


def test_curves_comparisons_and_the_audit_come_from_the_other_plane(
    alice: Person, plane: Plane
) -> None:
    with Teller(plane, "curved") as teller:
        teller.tell(0, *((step, {"loss": 1.0 / (step + 1), "lr": 0.1}) for step in range(50)))
        teller.tell(1, (0, {"loss": 7.0}))
        until(teller.is_stored, PATIENCE)
    with Teller(plane, "curved", 1, generation=1) as teller:
        teller.tell(0, *((step, {"lr": 0.2}) for step in range(48, 50)))
        until(teller.is_stored, PATIENCE)

    older = alice.loom("plot", "curved", "lr", "--replaced", "--json")
    drawn = alice.loom("plot", "curved", "loss", "--json")
    every = alice.loom("plot", "curved", "loss", "--all-ranks", "--json")
    compared = alice.loom("compare", "curved", "gpt", "--json")
    audit = alice.loom("inspect", "gpt", "audit", "--json")

    assert drawn[2] == compared[2] == ""
    (curve,) = json.loads(drawn[1])
    assert (curve["name"], curve["rank"], curve["steps"]) == ("loss", 0, list(range(50)))
    assert curve["values"] == [1.0 / (step + 1) for step in range(50)]
    (repeated,) = json.loads(older[1])
    assert repeated["values"] == [0.1] * 48 + [0.2] * 2
    (former,) = repeated["replaced"]
    assert (former["generation"], former["steps"], former["values"]) == (0, [48, 49], [0.1, 0.1])
    assert [(one["rank"], one["values"][0]) for one in json.loads(every[1])] == [(0, 1.0), (1, 7.0)]
    assert [run["job_id"] for run in json.loads(compared[1])["runs"]] == ["curved", "job-1"]
    assert (audit[0], audit[2]) == (0, "")
    known = asyncio.run(plane.ask("audit", job="job-1"))
    assert [one["id"] for one in json.loads(audit[1])] == [one["id"] for one in known]


def test_the_monitor_tells_of_the_other_plane_and_steers_it(
    alice: Person, bob: Person, plane: Plane
) -> None:
    with Teller(plane, "watched") as teller:
        teller.tell(0, *((step, {"loss": 3.0 - step}) for step in range(3)))
        until(teller.is_stored, PATIENCE)

    jobs, metrics, weaver = (
        alice.loom("monitor", *words) for words in (["jobs"], ["metrics", "watched"], ["plane"])
    )
    piped = alice.loom("monitor", said="use gpt\nranks\nknobs\nevents\n")
    refused = alice.loom("monitor", "set gpt lr=0.5")
    changed = bob.loom("monitor", "set gpt lr=0.5 --reason faster")

    assert jobs[2] == metrics[2] == weaver[2] == piped[2] == ""
    assert {line.split()[0] for line in jobs[1].splitlines()[1:]} >= {"job-1", "watched"}
    assert metrics[1].splitlines()[1].split() == ["loss", "0", "2", "1", "█▅▁"]
    told = asyncio.run(plane.ask("status"))
    assert f"{told['host']} pid {told['pid']}, epoch {told['epoch']}" in weaver[1]
    assert "default job: job-1\nRANK  STATE" in piped[1]
    assert "\nKNOB " in piped[1]
    assert " rank_up " in piped[1]
    assert (refused[0], refused[1]) == (2, "")
    assert "alice is viewer, and this takes operator" in refused[2]
    assert changed[0] == 0
    assert re.fullmatch(r"lr .* -> 0\.5 at step \d+ on ranks 0-1, acked in .* m?s\n", changed[1])
    assert asyncio.run(plane.ask("audit", job="job-1"))[-1]["author"] == "bob"


def test_the_monitors_screen_shows_of_the_other_plane_what_its_own_host_shows(
    alice: Person, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Teller(plane, "shown") as teller:
        teller.tell(0, *((step, {"loss": 3.0 - step}) for step in range(3)))
        until(teller.is_stored, PATIENCE)
        monkeypatch.setenv("LOOM_HOME", alice.env["LOOM_HOME"])
        away = SnapshotReader(chosen.asker()).read(PollRequest(job="shown", devices=True))
        monkeypatch.setenv("LOOM_HOME", str(plane.home))
        monkeypatch.setenv("XDG_RUNTIME_DIR", plane.env["XDG_RUNTIME_DIR"])
        here = SnapshotReader(chosen.asker()).read(PollRequest(job="shown", devices=True))

    assert (away.trouble, here.trouble) == ("", "")
    assert (away.job, away.series) == (here.job, here.series)
    assert [point for one in away.series for point in one["points"]] == [
        (step, 0.0, 3.0 - step) for step in range(3)
    ]
    assert [job["id"] for job in away.jobs] == [job["id"] for job in here.jobs]
    assert away.counts["shown"] == here.counts["shown"] == (2, 2)
    assert [one["kind"] for one in away.events] == [one["kind"] for one in here.events]
    assert away.devices == here.devices
    assert here.status.keys() - away.status.keys() == {"database", "note", "problems"}


def test_the_screen_of_a_plane_that_is_away_says_so(
    alice: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = json.loads((Path(alice.env["LOOM_HOME"]) / "login.json").read_text())
    gone = tmp_path / "login.json"
    gone.touch(0o600)
    gone.write_text(json.dumps({**kept, "url": "https://127.0.0.1:1"}))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))

    seen = SnapshotReader(chosen.asker()).read(PollRequest())

    assert seen.trouble.startswith("https://127.0.0.1:1 does not answer")


def test_what_is_not_there_is_refused_in_words(alice: Person, bob: Person) -> None:
    cases: list[tuple[Person, list[str], str]] = [
        (alice, ["show", "none"], "no job 'none'"),
        (bob, ["run", "train.py"], "'train.py' is not a spec file; a remote plane needs one"),
        (bob, ["run", "none.yaml"], "cannot read 'none.yaml'"),
        (alice, ["logs", "gpt", "--ranks", "x"], "'x' is not a list of ranks; write 0,2,3"),
    ]
    for person, words, why in cases:
        code, out, err = person.loom(*words)
        assert (code, out) == (2, ""), words
        assert why in err


@contextlib.contextmanager
def able_to_submit(plane: Plane, name: str) -> Iterator[None]:
    """Have a person's job run as root where the plane does: for an admin who is bound to it."""
    facts = {"user": name, "author": "admin"}
    if os.geteuid() == 0:
        asyncio.run(plane.ask("user_put", **facts, role="admin", run_as="root"))
    yield
    if os.geteuid() == 0:
        asyncio.run(plane.ask("user_put", **facts, role="operator", run_as=""))


def test_a_spec_file_goes_to_the_other_plane_which_says_what_it_cannot_run(
    bob: Person, alice: Person, plane: Plane
) -> None:
    spec = {"name": "told", "command": ["true"], "resources": {"workers": 1}}
    for person in (alice, bob):
        (person.folder / "job.json").write_text(json.dumps(spec))

    refused = alice.loom("run", "-d", "job.json")
    with able_to_submit(plane, "bob"):
        done = bob.loom("run", "--json", "job.json")

    assert refused[0] == 2
    assert "alice is viewer, and this takes operator" in refused[2]
    assert done == (2, "", "loom: unschedulable: needs 1 worker, the cluster has no node\n")


def test_forgetting_the_other_plane_brings_this_hosts_verbs_back(alice: Person) -> None:
    kept = Path(alice.env["LOOM_HOME"]) / "login.json"
    text = kept.read_text()

    assert alice.loom("login", "--forget")[0] == 0
    here = alice.loom("ls", "--json")

    assert json.loads(here[1]) == []
    kept.touch(0o600)
    kept.write_text(text)
