"""Push an environment to hosts: over a strict stand-in for ssh, and between real hosts."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.envs.archive import find_prefix, pack
from torchloom.envs.push import Delivery, Push
from torchloom.envs.remote import BadDestination, Ssh, check_destination

from ..harness.home import until

pytestmark = pytest.mark.process

# A stand-in for ssh: every host is a folder that is its home. It takes exactly the words that the
# real one is given, hands the last to a login shell, and writes down who called whom.
STAND_IN = """
import os, sys
words = sys.argv[1:]
options = {}
while words[0] == "-o":
    name, value = words[1].split("=")
    options[name] = value
    words = words[2:]
assert options["BatchMode"] == "yes" and words[0] == "--" and len(words) == 3, sys.argv
root, host, command = os.environ["HOSTS"], words[1], words[2]
with open(root + "/calls", "a") as calls:
    calls.write(os.environ.get("HERE", "here") + " " + host + "\\n")
if not os.path.isdir(root + "/" + host):
    sys.exit("ssh: Could not resolve hostname %s\\nssh: connect failed" % host)
env = {"PATH": os.environ["PATH"], "HOME": root + "/" + host, "HOSTS": root, "HERE": host}
os.execve("/bin/bash", ["bash", "-c", command], env)
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A small environment that is all its own: its Python is in it."""
    folder = tmp_path / "small"
    (folder / "bin").mkdir(parents=True)
    (folder / "conda-meta").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "place").write_text(str(folder))
    (folder / "tool").write_text("worked")
    return pack(find_prefix(folder), tmp_path / "small.tar.gz").path


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make hosts for the stand-in."""
    monkeypatch.setenv("HOSTS", str(tmp_path / "hosts"))
    (tmp_path / "ssh.py").write_text(STAND_IN)

    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / "hosts" / name).mkdir(parents=True)
        return tmp_path / "hosts"

    return make


def push(archive: Path, tmp_path: Path, names: list[str], **options: Any) -> dict[str, Delivery]:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    ssh = Ssh([sys.executable, str(tmp_path / "ssh.py")])
    fanout = options.pop("fanout", 2)
    job = Push(archive, options.pop("digest", digest), options.pop("dest", "~/env"), ssh, **options)
    return {each.host: each for each in job.run(names, fanout)}


def states(found: dict[str, Delivery]) -> dict[str, str]:
    return {host: each.state for host, each in found.items()}


def test_every_host_has_it_at_its_place_and_nothing_else_is_left(
    archive: Path, hosts: Any, tmp_path: Path
) -> None:
    names = [f"h{number}" for number in range(9)]
    root = hosts(*names)

    found = push(archive, tmp_path, names)

    assert set(states(found).values()) == {"ready"}
    for name in names:
        env = root / name / "env"
        assert [path.name for path in (root / name).iterdir()] == ["env"]
        assert (env / "tool").read_text() == "worked"
        assert (env / "place").read_text() == str(env)
    sources = {each.source for each in found.values()}
    assert "" in sources
    assert len(sources) > 1  # hosts served hosts
    callers = [line.split() for line in (root / "calls").read_text().splitlines()]
    assert {caller for caller, _ in callers} == {"here", *(sources - {""})}


def test_a_second_push_finds_it_there_and_a_new_environment_takes_its_place(
    archive: Path, hosts: Any, tmp_path: Path
) -> None:
    root = hosts("a", "b")
    push(archive, tmp_path, ["a", "b"])
    again = push(archive, tmp_path, ["a", "b"])
    (tmp_path / "small/tool").write_text("newer")
    newer = pack(find_prefix(tmp_path / "small"), tmp_path / "newer.tar").path

    after = push(newer, tmp_path, ["a", "b"])

    assert (states(again), states(after)) == (
        {"a": "present", "b": "present"},
        {"a": "ready", "b": "ready"},
    )
    assert (root / "a/env/tool").read_text() == "newer"
    assert [path.name for path in (root / "a").iterdir()] == ["env"]


def test_a_host_that_fails_is_named_with_its_error_and_the_others_get_it(
    archive: Path, hosts: Any, tmp_path: Path
) -> None:
    root = hosts("a", "full", "mine", "z")
    (root / "mine/env").mkdir()
    (root / "mine/env/thesis.tex").touch()
    (root / "full/sub").write_text("a file where a folder should be")

    found = push(archive, tmp_path, ["a", "nowhere", "mine", "z"])
    below = push(archive, tmp_path, ["full", "z"], dest="~/sub/env")

    assert states(found) == {"a": "ready", "nowhere": "failed", "mine": "failed", "z": "ready"}
    assert found["nowhere"].error == "ssh: connect failed"
    assert "exists and is not an environment of yours: choose another --dest" in found["mine"].error
    assert (root / "mine/env/thesis.tex").exists()
    assert states(below) == {"full": "failed", "z": "ready"}
    assert "mkdir" in below["full"].error


def test_bytes_that_changed_on_their_way_are_not_unpacked(
    archive: Path, hosts: Any, tmp_path: Path
) -> None:
    root = hosts("a")

    found = push(archive, tmp_path, ["a"], digest="0" * 64)

    assert found["a"].error == "the received file differs from the one that was sent"
    assert list((root / "a").iterdir()) == []


def test_an_interpreter_that_a_host_lacks_is_named(hosts: Any, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    (folder / "bin").mkdir(parents=True)
    (folder / "conda-meta").mkdir()
    (folder / "bin/python").symlink_to("/opt/python9/bin/python")
    root = hosts("a")

    found = push(pack(find_prefix(folder), tmp_path / "b.tar").path, tmp_path, ["a"])

    assert "its interpreter /opt/python9/bin/python is not on this host" in found["a"].error
    assert list((root / "a").iterdir()) == []


def test_hosts_that_cannot_reach_each_other_are_served_from_here(
    archive: Path, hosts: Any, tmp_path: Path
) -> None:
    names = ["a", "b", "c", "d"]
    hosts(*names)
    alone = STAND_IN.replace(
        "import os, sys\n", "import os, sys\n'HERE' in os.environ and sys.exit('no')\n"
    )
    (tmp_path / "ssh.py").write_text(alone)

    found = push(archive, tmp_path, names, fanout=1)

    assert states(found) == dict.fromkeys(names, "ready")
    assert {each.source for each in found.values()} == {""}


def test_this_machine_needs_no_ssh(archive: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    way = Ssh(["/no/such/ssh"], own_host="me.cluster")

    found = Push(archive, digest, str(tmp_path / "env"), way).run(["localhost", "me"], 2)

    assert [(each.host, each.state) for each in found] == [("localhost", "ready")]
    assert (tmp_path / "env/place").read_text() == str(tmp_path / "env")


def test_an_ssh_that_cannot_be_started_is_told(archive: Path, tmp_path: Path) -> None:
    (found,) = Push(archive, "0" * 64, "/x/y", Ssh(["/no/such/ssh"])).run(["a"], 1)

    assert found.error == "cannot run /no/such/ssh: No such file or directory"


@pytest.mark.parametrize("text", ["", "env", "/", "/a b", "/a'b", "~", "~ada/x", "/a/../b", "/$x"])
def test_a_destination_that_a_shell_could_misread_is_refused(text: str) -> None:
    with pytest.raises(BadDestination, match="write a full path"):
        check_destination(text)


@pytest.mark.parametrize(
    ("text", "path"), [("/tmp/env/", "/tmp/env"), ("~/envs/a-1.2", "~/envs/a-1.2")]
)
def test_a_destination_is_a_full_path(text: str, path: str) -> None:
    assert check_destination(text) == path


PUSH = """
import hashlib, json, sys
from dataclasses import asdict
from pathlib import Path
from torchloom.envs.push import Push
from torchloom.envs.remote import Ssh
archive, dest, hosts, fanout = sys.argv[1:5]
digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
job = Push(Path(archive), digest, dest, Ssh(sys.argv[5:] or ["ssh"]))
print(json.dumps([asdict(each) for each in job.run(hosts.split(","), int(fanout))]))
"""


def far_push(cluster: Any, archive: Path, dest: Path, hosts: str, fanout: int) -> Any:
    config = ["ssh", "-F", str(cluster.ssh_config)]
    words = [sys.executable, "-c", PUSH, str(archive), f"{dest}/env", hosts, str(fanout), *config]
    return cluster.popen("ctl", words)


def test_real_hosts_are_served_over_real_ssh(
    archive: Path, ssh_cluster: Any, tmp_path: Path
) -> None:
    dest = tmp_path / "dest"
    dest.mkdir()
    ssh_cluster.private(dest)

    done = far_push(ssh_cluster, archive, dest, "n1,n2,n3,n4", 1)
    out, err = done.communicate(timeout=60)

    assert err == ""
    found = json.loads(out)
    assert [(each["host"], each["state"]) for each in found] == [
        (name, "ready") for name in ("n1", "n2", "n3", "n4")
    ]
    for name in ("n1", "n2", "n3", "n4"):
        place = ssh_cluster.run(name, ["sh", "-c", f"cat {dest}/env/place; ls {dest}"]).stdout
        assert place == f"{dest}/envenv\n"
    assert len({each["source"] for each in found}) > 1


def test_a_serving_host_that_dies_in_the_middle_costs_only_itself(
    ssh_cluster: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "big"
    (folder / "bin").mkdir(parents=True)
    (folder / "conda-meta").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "noise").write_bytes(os.urandom(8 << 20))
    archive = pack(find_prefix(folder), tmp_path / "big.tar").path
    dest = tmp_path / "dest"
    dest.mkdir()
    ssh_cluster.private(dest)
    ssh_cluster.shape("n1", "8mbit")  # what it serves takes eight seconds: it dies long before

    job = far_push(ssh_cluster, archive, dest, "n1,n2,n3,n4", 1)
    serving = until_serving(ssh_cluster, "n1")
    ssh_cluster.kill_host("n1")
    out, _ = job.communicate(timeout=120)

    found = {each["host"]: each for each in json.loads(out)}
    assert serving in ("n2", "n3", "n4")
    assert {host: each["state"] for host, each in found.items()} | {"n1": ""} == {
        "n1": "",
        **dict.fromkeys(("n2", "n3", "n4"), "ready"),
    }
    assert found[serving]["source"] != "n1"
    for name in ("n2", "n3", "n4"):
        same = ["sh", "-c", f"ls {dest}; cmp {dest}/env/noise {folder}/noise"]
        assert ssh_cluster.run(name, same).stdout == "env\n"


def until_serving(cluster: Any, host: str) -> str:
    """Wait until a host sends to another; return to which."""
    found: list[str] = []

    def serves() -> bool:
        for pid in cluster.pids(host):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.path.basename(words[0]) == b"ssh" and b"--" in words:
                found.append(words[words.index(b"--") + 1].decode())
        return bool(found)

    until(serves)
    return found[0]


def test_an_interrupted_push_ends_what_it_started(
    archive: Path, hosts: Any, tmp_path: Path
) -> None:
    hosts("a")
    (tmp_path / "ssh.py").write_text("import time; time.sleep(600)")
    heard = "import signal; signal.signal(2, signal.default_int_handler)"  # even in the background
    words = [sys.executable, "-c", heard + PUSH, str(archive), "~/env", "a", "1"]
    ssh = [sys.executable, str(tmp_path / "ssh.py")]
    job = subprocess.Popen([*words, *ssh], stderr=subprocess.PIPE, start_new_session=True)
    started = until_child(job.pid)

    os.kill(job.pid, 2)
    try:
        assert job.wait(30) != 0
        until(lambda: not Path(f"/proc/{started}").exists())
    finally:
        if job.poll() is None:
            os.killpg(job.pid, 9)


def until_child(pid: int) -> int:
    """Wait until one of a process' threads has started another process; return which."""
    found: list[int] = []

    def has() -> bool:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                found.extend(map(int, (thread / "children").read_text().split()))
        return bool(found)

    until(has)
    return found[0]
