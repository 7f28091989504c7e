"""A plane on one host, its users on two others: one follows, one steers, over pinned TLS."""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..harness.cluster import Cluster

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
ADDRESS = "10.77.0.1"  # of ctl
SCRIPT = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.5)
out = open(f"{os.environ['OUT']}/{os.environ['RANK']}", "w", buffering=1)
for step in range(100_000):
    weight.data.zero_()
    weight.grad = torch.full((1,), 1 / dist.get_world_size())
    dist.all_reduce(weight.grad)
    optimizer.step()
    print(round(-weight.item(), 3), file=out)  # the lr that this step really had
    print("step", step, flush=True)
    time.sleep(0.02)
"""


class Person:
    """Somebody on a host, with a home of their own."""

    def __init__(self, cluster: Cluster, host: str, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._cluster, self._host = cluster, host
        self.env = {
            **dict.fromkeys(("HOME", "XDG_RUNTIME_DIR"), str(folder)),
            "LOOM_HOME": str(folder / "loom"),
            "LOOM_PLANE": "1",
            "LOOM_NATS": "",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self._cluster.popen(self._host, ["loom", *words], self.env)

    def loom(self, *words: str, said: str = "") -> tuple[int, str, str]:
        done = self._cluster.run(self._host, ["loom", *words], self.env, timeout=120, stdin=said)
        return done.returncode, done.stdout, done.stderr

    def asked(self, *words: str) -> Any:
        code, out, err = self.loom(*words, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def owner(cluster: Cluster, tmp_path: Path) -> Iterator[Person]:
    """Whose plane it is: on ctl, for other hosts."""
    made = Person(cluster, "ctl", tmp_path / "owner")
    code, _, err = made.loom("up", "--host", ADDRESS, "--trust-operators")
    assert code == 0, err
    yield made
    made.loom("down")


def test_one_looks_one_steers_and_the_plane_knows_who_did_what(
    cluster: Cluster, owner: Person, tmp_path: Path
) -> None:
    alice, bob = (Person(cluster, host, tmp_path / host) for host in ("n1", "n2"))
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = {"name": "told", "script": str(tmp_path / "train.py"), "env": {"OUT": str(tmp_path)}}
    (tmp_path / "job.json").write_text(json.dumps({**spec, "resources": {"workers": 2}}))
    links = {
        name: owner.asked("tokens", "link", name, "--role", role)
        for name, role in (("alice", "viewer"), ("bob", "operator"))
    }
    url = links["bob"]["url"].partition("/login#")[0]
    known = ["--fingerprint", links["bob"]["fingerprint"]]
    assert url.startswith(f"https://{ADDRESS}:")

    wrong = alice.loom("login", url, "--fingerprint", "0" * 64, said=links["alice"]["url"])
    entered = [
        person.loom("login", url, *known, said=links[name]["url"])
        for name, person in (("alice", alice), ("bob", bob))
    ]
    twice = alice.loom("login", url, *known, said=links["bob"]["url"])

    assert wrong[0] == 1
    assert "another server answers there" in wrong[2]
    assert entered == [
        (0, f"{url} as alice (viewer)\n", ""),
        (0, f"{url} as bob (operator)\n", ""),
    ]
    assert twice[0] == 2
    assert "this link was already used; a link works once" in twice[2]

    with able_to_submit(owner, "bob"):
        job = bob.asked("run", str(tmp_path / "job.json"))["id"]
    following = alice.start("logs", "-f", job)
    assert "step" in heard(following)
    until_used(tmp_path, ("0", "1"), 0.5)
    refused = alice.loom("set", job, "lr=0.125")
    changed = bob.asked("set", job, "lr=0.25", "--hold", "--reason", "too fast")
    until_used(tmp_path, ("0", "1"), 0.25)

    assert (refused[0], refused[1]) == (2, "")
    assert refused[2].startswith("loom: alice is viewer, and this takes operator")
    assert (changed["author"], changed["state"]) == ("bob", "applied")
    audit = owner.asked("inspect", job, "audit")
    assert [(one["author"], one["reason"]) for one in audit] == [("bob", "too fast")]

    assert alice.loom("stop", job)[0] == 2
    assert bob.loom("stop", job, "--reason", "enough")[0] == 0
    assert following.wait(60) == 0
    ended = alice.asked("show", job)
    assert (ended["owner"], ended["state"]) == ("bob", "CANCELLED")
    used = {float(line) for line in (tmp_path / "0").read_text().split()}
    assert used == {0.5, 0.25}  # hers was never tried


@contextlib.contextmanager
def able_to_submit(owner: Person, name: str) -> Iterator[None]:
    """Have a person's job run as root where the plane does: for an admin who is bound to it."""
    if os.geteuid() != 0:
        yield
        return
    assert owner.loom("tokens", "user", name, "--role", "admin", "--run-as", "root")[0] == 0
    yield
    assert owner.loom("tokens", "user", name, "--role", "operator", "--run-as", "")[0] == 0


def heard(process: subprocess.Popen[str]) -> str:
    """Return the first that a process says."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "nothing was said"
    return os.read(process.stdout.fileno(), 4096).decode()


def until_used(folder: Path, ranks: Sequence[str], value: float) -> None:
    """Come back when the last step of each rank had this lr, by what the ranks write themselves."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        texts = [path.read_text().split() for rank in ranks if (path := folder / rank).exists()]
        if len(texts) == len(ranks) and all(text and float(text[-1]) == value for text in texts):
            return
        time.sleep(0.01)
    raise AssertionError(f"no step had an lr of {value}")
