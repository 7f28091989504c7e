"""A plane that runs as root and jobs of two unix accounts: neither reaches the plane or the other.

What a job could do it tries itself and writes down; what the plane did is read from the kernel and
from files. Where other accounts cannot reach this interpreter, which may lie in root's own home,
the plane runs in a mount namespace in which they can; nothing outside of it changes.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import LOOM, processes_of, until

pytestmark = [pytest.mark.process, pytest.mark.needs("root"), pytest.mark.needs("torch")]
ALICE, BOB = "games", "daemon"  # accounts that every host has
SECRET = "canary-3b9d71"
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
ROOT_HOME = "/root"
OPEN_ROOT = """
set -e
mount --bind "$1" /mnt
mount -t tmpfs -o mode=755 none "$2"
mkdir -p "$1"
mount --bind /mnt "$1"
umount /mnt
shift 2
exec "$@"
"""
TRAIN = """
import json, os, sys, time
import torch
import torch.distributed as dist
import torchloom as loom

out = sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(7)
run = loom.init(project="accounts")
run.checkpointing(every_n_steps=20, keep_last=1000)
net = torch.nn.Linear(8, 8)
model = run.wrap(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
run.track(optimizer=optimizer)
rates = [0.0]  # what the last step used
optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
told = os.open(f"{out}/rank-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
for step in run.steps(int(sys.argv[2])):
    with step:
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
    facts = {"pid": os.getpid(), "uid": os.getuid(), "step": step.number, "rate": rates[-1]}
    os.write(told, (json.dumps(facts) + "\\n").encode())
    print("step", step.number, flush=True)
    time.sleep(0.02)
"""
SPY = """
import json, os, sys
tries = json.loads(sys.argv[2])
def read(path):
    try:
        if os.path.isdir(path):
            return f"listed {os.listdir(path)}"
        with open(path, "rb") as file:
            return f"read {file.read(100)!r}"
    except OSError as error:
        return type(error).__name__
def end(pid):
    try:
        os.kill(pid, 0)
        return "signalled"
    except OSError as error:
        return type(error).__name__
found = {"uid": os.getuid(), "env": dict(os.environ)}
found["files"] = {path: read(path) for path in tries["files"]}
found["processes"] = {pid: end(pid) for pid in tries["processes"]}
found["walked"] = []
for top, folders, names in os.walk(tries["walk"]):
    for name in names:
        path = os.path.join(top, name)
        if os.stat(path).st_uid != os.getuid() and os.access(path, os.R_OK):
            found["walked"].append(path)
with open(sys.argv[1] + ".partial", "w") as file:
    json.dump(found, file)
os.rename(sys.argv[1] + ".partial", sys.argv[1])
"""
CLAIM = """
import asyncio, ctypes, json, os, sys
from torchloom.bus import subjects
from torchloom.bus.codec import decode, encode
from torchloom.bus.nats.client import FoundBus
from torchloom.launch.host import identity
from torchloom.launch.node_agent.uplink import Vouched
from torchloom.messages.plane import NO_RANK, VERSION, Device, DeviceEvent, Greeting, Head, Hello

out, agent, name, victim = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
GETFD, LINE = 438, 3  # the system call pidfd_getfd; the agent's line to the plane
libc = ctypes.CDLL(None, use_errno=True)
line = libc.syscall(GETFD, os.pidfd_open(agent), LINE, 0)
if line < 0:
    sys.exit(os.strerror(ctypes.get_errno()))

async def claim():
    bus = FoundBus(Vouched(line, name).find, subjects.inbox(name))
    bus.start()
    host, boot = identity.host_name(), identity.boot_id()
    head = Head(VERSION, "", 0, NO_RANK, f"{boot}/{agent}")
    gpu = (Device("gpu-claimed", "cuda", 0, 1 << 16),)
    hello = Hello(head, name, host, boot, agent, 0, gpu, (), 64, 1 << 20)
    while True:
        try:
            answer = await bus.request(subjects.hello(name), encode(hello), 5.0)
            break
        except Exception as error:  # not connected yet
            print(type(error).__name__, error, flush=True)
            await asyncio.sleep(0.1)
    failed = DeviceEvent(head, victim, "failed", name, "it says so")
    await bus.publish(subjects.devices(name), encode(failed))
    await bus.close()
    return decode(answer, Greeting).agent

greeted = asyncio.run(claim())
with open(out + ".partial", "w") as file:
    json.dump({"uid": os.getuid(), "greeted": greeted}, file)
os.rename(out + ".partial", out)
"""
WAIT = """
import os, sys, time
print("waits", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


def as_account(name: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command as an account, with its groups."""
    known = pwd.getpwnam(name)
    return subprocess.run(
        words,
        user=known.pw_uid,
        group=known.pw_gid,
        extra_groups=os.getgrouplist(name, known.pw_gid),
        capture_output=True,
        cwd="/",
        timeout=60,
        env={"PATH": os.environ["PATH"]},
    )


def namespace() -> list[str]:
    """Return the words before a command that let accounts reach this interpreter."""
    try:
        if as_account(ALICE, sys.executable, "-c", "").returncode == 0:
            return []
    except OSError:
        pass
    real = Path(sys.executable).resolve()
    if not real.is_relative_to(ROOT_HOME):
        pytest.skip(f"other accounts cannot run {sys.executable}")
    below = Path(ROOT_HOME, real.relative_to(ROOT_HOME).parts[0])
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", OPEN_ROOT, "sh"]
    return [*words, str(below), ROOT_HOME]


class RootPlane:
    """A plane of root with a state folder that accounts can look through, and people on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "loom"
        self.home.mkdir(mode=0o755)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "XDG_"))},
            "HOME": str(folder / "root"),
            "LOOM_HOME": str(self.home),
            "LOOM_PLANE": "1",
            "CANARY_TOKEN": SECRET,
        }
        (folder / "root").mkdir(mode=0o700)
        self._tokens: dict[str, str] = {}
        self._before = namespace()
        self.up()

    def up(self) -> None:
        done = self.loom("up")
        assert done.returncode == 0, done.stderr
        self.url = json.loads(self.loom("up", "--status", "--json").stdout)["url"]

    def loom(self, *words: str) -> "subprocess.CompletedProcess[bytes]":
        words = (*self._before, LOOM, *words)
        return subprocess.run(words, env=self.env, capture_output=True, timeout=120)

    def person(self, name: str, account: str, role: str = "operator") -> None:
        """Make somebody with an account, and a token."""
        bound = ("--run-as", account) if account else ()
        done = self.loom("tokens", "user", name, "--role", role, *bound)
        assert done.returncode == 0, done.stderr
        self._tokens[name] = self.loom("tokens", "add", name).stdout.decode().strip()

    def token_of(self, name: str) -> str:
        if name == "admin":
            return (self.home / "plane" / "admin.token").read_text().strip()
        return self._tokens[name]

    def ask(self, who: str, path: str, body: Any = None, method: str = "") -> tuple[int, Any]:
        """Ask the API; return the status, and what it said."""
        asked = urllib.request.Request(
            f"{self.url}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token_of(who)}", "Content-Type": "application/json"},
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def submit(self, who: str, script: Path, *args: str, **more: Any) -> str:
        spec = {"name": "job", "script": str(script), "args": list(args), **more}
        status, job = self.ask(who, "/api/jobs", spec)
        assert status == 201, job
        return str(job["id"])

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("admin", f"/api/jobs/{job}")[1]
        return found

    def ended(self, job: str, state: str = "COMPLETED") -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            found = self.job(job)
            return found if found["ended_at"] else None

        found: dict[str, Any] = until(over, f"the end of {job}")
        assert found["state"] == state, (found["reason"], self.log_of(job))
        return found

    def run_folder(self, account: str, job: str) -> Path:
        return self.home / "accounts" / account / "runs" / job

    def log_of(self, job: str) -> str:
        items = self.ask("admin", f"/api/jobs/{job}/logs")[1].get("items", [])
        return "\n".join(line["message"] for line in items)

    def texts(self, job: str) -> str:
        """Return all that anybody is shown of a job's files, in one text."""
        found = [self.ask("admin", f"/api/jobs/{job}{path}")[1] for path in SHOWN]
        found.append(self.ask("admin", f"/api/experiments/{job}")[1])
        words = [json.dumps(found)]
        for verb in (("logs", job), ("show", job), ("show", "--json", job)):
            done = self.loom(*verb)
            words.append((done.stdout + done.stderr).decode(errors="replace"))
        return "\n".join(words)

    def down(self) -> None:
        self.loom("down")


SHOWN = (
    *("", "/logs", "/logs?tail=100", "/logs?regex=canary", "/logs?level=debug", "/events", "/spec"),
    *("/checkpoints", "/logs?since=2001-01-01T00:00:00%2B00:00", "/stacks"),
)


def of_account(name: str, home: Path) -> dict[int, str]:
    """Return the living processes of an account that belong to a plane, by the kernel's word."""
    uid, found = pwd.getpwnam(name).pw_uid, {}
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                words = Path(entry.path, "cmdline").read_text().replace("\0", " ")
                if str(home) in words + Path(entry.path, "environ").read_text():
                    found[int(entry.name)] = words
        except OSError:
            continue
    return {pid: words for pid, words in found.items() if words}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account can look through."""
    with opened_folder() as made:
        yield made


@contextlib.contextmanager
def opened_folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="loom-as-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def running_plane() -> Iterator[RootPlane]:
    """Run a plane of root, with alice and bob; afterwards no process of theirs is left."""
    with opened_folder() as folder:
        made = RootPlane(folder)
        try:
            made.person("alice", ALICE)
            made.person("bob", BOB)
            yield made
        finally:
            made.down()
        try:
            until(lambda: not left(made), "the processes of accounts to end")
        finally:
            for name in (ALICE, BOB):
                for pid in of_account(name, made.home):
                    os.kill(pid, signal.SIGKILL)


def cancel_jobs(plane: RootPlane) -> None:
    for job in plane.ask("admin", "/api/jobs")[1]["items"]:
        if not job["ended_at"]:
            plane.ask("admin", f"/api/jobs/{job['id']}", method="DELETE")
            plane.ended(job["id"], "CANCELLED")


@pytest.fixture(scope="module")
def shared() -> Iterator[RootPlane]:
    """Give the module a plane, for tests that change nothing but jobs of their own."""
    with running_plane() as made:
        yield made


@pytest.fixture
def plane(shared: RootPlane) -> Iterator[RootPlane]:
    """Give a plane of root with alice and bob; jobs that a test leaves are ended."""
    yield shared
    cancel_jobs(shared)


@pytest.fixture
def own_plane() -> Iterator[RootPlane]:
    """Give a plane to a test that changes people or databases."""
    with running_plane() as made:
        yield made
        cancel_jobs(made)


def left(plane: RootPlane) -> list[str]:
    """Return processes of accounts but for zygotes, which wait for the next job for a while."""
    found = [of_account(name, plane.home).values() for name in (ALICE, BOB)]
    return [words for items in found for words in items if ZYGOTE not in words]


ZYGOTE = "zygote"


def out_of(folder: Path, account: str) -> Path:
    """Return a folder of an account for what its jobs write down."""
    made = folder / f"out-{account}"
    if not made.exists():
        made.mkdir(mode=0o755)
        os.chown(made, pwd.getpwnam(account).pw_uid, pwd.getpwnam(account).pw_gid)
    return made


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def steps_of(out: Path, rank: int) -> list[dict[str, Any]]:
    path = out / f"rank-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def test_people_are_bound_to_accounts_and_all_else_is_refused_in_words(
    own_plane: RootPlane,
) -> None:
    for account, words in (
        ("no-such-account", "this host has no such account"),
        ("root", "only an admin may be"),
    ):
        refused = own_plane.loom("tokens", "user", "alice", "--run-as", account)
        assert refused.returncode == 2
        assert words in refused.stderr.decode()
    status, said = own_plane.ask("admin", "/api/users/alice", {"run_as": "root"}, "PUT")
    assert (status, said["code"], said["field"]) == (422, "bad_account", "run_as")
    assert own_plane.ask("alice", "/api/users/alice", {"run_as": BOB}, "PUT")[0] == 403

    listed = own_plane.loom("tokens", "users").stdout.decode()
    shown = {one["name"]: one["run_as"] for one in own_plane.ask("admin", "/api/users")[1]["items"]}

    assert [line.split()[:3] for line in listed.splitlines() if line.startswith("alice")] == [
        ["alice", "operator", ALICE]
    ]
    assert shown == {"admin": None, "alice": ALICE, "bob": BOB}
    taken = own_plane.ask("admin", "/api/users/bob", {"run_as": ""}, "PUT")[1]
    assert taken["run_as"] is None


def test_a_person_without_an_account_starts_nothing_on_a_plane_of_root(
    own_plane: RootPlane, folder: Path
) -> None:
    own_plane.person("carol", "")
    own_plane.person("dave", "", "admin")
    job = script(folder, "job.py", f"open('{folder}/ran', 'w')")
    spec = {"name": "job", "script": str(job)}

    for who in ("carol", "dave"):
        status, said = own_plane.ask(who, "/api/jobs", spec)
        assert (status, said["code"]) == (422, "no_account")
        assert f"loom tokens user {who} --run-as ACCOUNT" in said["remedy"]
        status, said = own_plane.ask(who, "/api/jobs", {"items": [spec]})
        assert said["items"][0]["problem"]["code"] == "no_account"
    assert own_plane.ask("admin", "/api/jobs")[1]["items"] == []
    assert not (folder / "ran").exists()

    assert own_plane.loom("tokens", "user", "dave", "--run-as", "root").returncode == 0
    own_plane.ended(own_plane.submit("dave", job))
    assert (folder / "ran").stat().st_uid == 0


def test_all_processes_of_a_job_are_of_its_account_and_have_nothing_of_the_plane(
    plane: RootPlane, folder: Path
) -> None:
    known = pwd.getpwnam(ALICE)
    go = folder / "go"
    job = plane.submit("alice", script(folder, "w.py", WAIT), str(go), resources={"workers": 2})

    until(lambda: plane.log_of(job).count("waits") == 2, "both ranks")
    found = of_account(ALICE, plane.home)
    ranks = [pid for pid, words in found.items() if "w.py" in words and str(go) in words]
    launch = [pid for pid, words in found.items() if "loom-launch" in words]
    agents = [pid for pid, words in found.items() if "torchloom.launch.node_agent" in words]

    assert (len(ranks), len(agents)) == (2, 1)
    assert len(launch) >= 3
    groups = {str(gid) for gid in os.getgrouplist(ALICE, known.pw_gid)}
    for pid in (*ranks, *launch, *agents):
        kernel = status_of(pid)
        assert kernel["Uid"].split() == [str(known.pw_uid)] * 4
        assert kernel["Gid"].split() == [str(known.pw_gid)] * 4
        assert set(kernel["Groups"].split()) == groups
        assert kernel["Umask"] == "0077"
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(kernel[name], 16) == 0, name
        held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
        assert not [path for path in held if path.startswith(str(plane.home / "plane"))]
    env = dict(
        pair.split("=", 1)
        for pair in Path(f"/proc/{ranks[0]}/environ").read_text().split("\0")
        if "=" in pair
    )
    names = {"HOME": known.pw_dir, "USER": ALICE, "LOGNAME": ALICE}
    assert {name: env[name] for name in names} == names
    assert SECRET not in json.dumps(env)
    own = [
        plane.run_folder(ALICE, job),
        Path(env["LOOM_PAGE"]).parent,
        Path(env["LOOM_AGENT"]).parent,
    ]
    for path in own:
        kind = path.lstat()
        assert (kind.st_uid, stat.S_IMODE(kind.st_mode)) == (known.pw_uid, 0o700), path
        assert as_account(BOB, "ls", str(path)).returncode != 0
    assert job in plane.loom("ls").stdout.decode()
    assert plane.loom("stop", job).returncode == 0
    plane.ended(job, "CANCELLED")


def test_a_job_reaches_neither_the_plane_nor_a_job_of_another_account(
    plane: RootPlane, folder: Path
) -> None:
    go, out = folder / "go", out_of(folder, ALICE) / "spied"
    other = plane.submit("bob", script(folder, "w.py", WAIT), str(go))
    until(lambda: "waits" in plane.log_of(other), "the job of bob")
    parts = [pid for pid in processes_of(plane.home) if Path(f"/proc/{pid}").stat().st_uid == 0]
    theirs = [pid for pid, words in of_account(BOB, plane.home).items() if "w.py" in words]
    assert len(parts) >= 5
    assert theirs
    own = plane.home / "plane"
    files = [
        *map(str, own.rglob("*")),
        *map(str, plane.run_folder(BOB, other).rglob("*")),
        *(f"/proc/{pid}/{name}" for pid in (*parts, *theirs) for name in ("environ", "fd", "mem")),
        str(plane.home / "accounts" / BOB),
        "/tmp/torchloom-0",
        str(plane.folder / "root"),
    ]
    assert str(own / "admin.token") in files
    tries = json.dumps({"files": files, "processes": [*parts, *theirs], "walk": str(plane.home)})
    (folder / "tries").write_text(tries)
    spy = SPY.replace("json.loads(sys.argv[2])", "json.load(open(sys.argv[2]))")

    job = plane.submit("alice", script(folder, "spy.py", spy), str(out), str(folder / "tries"))
    plane.ended(job)

    found = json.loads(out.read_text())
    assert found["uid"] == pwd.getpwnam(ALICE).pw_uid
    denied = ("PermissionError", "FileNotFoundError")
    assert {k: v for k, v in found["files"].items() if v not in denied} == {}
    assert set(found["files"].values()) >= {"PermissionError"}
    assert set(found["processes"].values()) == {"PermissionError"}
    assert found["walked"] == []
    assert SECRET not in json.dumps(found["env"])
    go.touch()
    plane.ended(other)


def test_a_job_of_an_account_is_steered_saved_recovered_live_and_resumed(
    plane: RootPlane, folder: Path
) -> None:
    out = out_of(folder, ALICE)
    job = plane.submit(
        "alice",
        script(folder, "train.py", TRAIN),
        str(out),
        "100000",
        resources={"workers": 2},
        recovery={"policy": "live"},
    )
    until(lambda: len(steps_of(out, 1)) > 40, "40 steps")

    status, said = plane.ask(
        "alice", f"/api/jobs/{job}/commands", {"verb": "set", "values": {"lr": 0.01}}
    )
    assert status in (200, 201, 202), said
    until(lambda: steps_of(out, 0)[-1]["rate"] == 0.01, "the new rate in the rank's own file")
    killed = steps_of(out, 1)[-1]["pid"]
    survivor = steps_of(out, 0)[-1]["pid"]
    os.kill(killed, signal.SIGKILL)
    until(lambda: steps_of(out, 1)[-1]["pid"] != killed, "another process of rank 1")
    at = steps_of(out, 1)[-1]["step"]
    until(lambda: steps_of(out, 1)[-1]["step"] > at + 20, "steps after the recovery")
    assert steps_of(out, 0)[-1]["pid"] == survivor
    assert {row["uid"] for row in steps_of(out, 1)} == {pwd.getpwnam(ALICE).pw_uid}

    plane.down()
    plane.up()
    until(lambda: is_watched(plane, job), "the ranks to be seen by the new plane")
    killed, at = steps_of(out, 1)[-1]["pid"], steps_of(out, 1)[-1]["step"]
    os.kill(killed, signal.SIGKILL)
    until(lambda: steps_of(out, 1)[-1]["pid"] != killed, "another process after the restart")
    assert steps_of(out, 0)[-1]["pid"] == survivor
    status, said = plane.ask("alice", f"/api/jobs/{job}/commands", {"verb": "checkpoint"})
    assert status in (200, 201, 202), said
    status, said = plane.ask("alice", f"/api/jobs/{job}/metrics?name=loss")
    assert status == 200, said
    assert "step" in plane.log_of(job)
    assert plane.ask("alice", f"/api/jobs/{job}", method="DELETE")[0] == 200
    plane.ended(job, "CANCELLED")
    until(
        lambda: not [w for w in of_account(ALICE, plane.home).values() if "train.py" in w],
        "no rank",
    )
    root = plane.run_folder(ALICE, job) / "checkpoints"
    assert [path.name for path in root.iterdir() if path.name.startswith("ckpt_step_")]
    assert {path.lstat().st_uid for path in root.rglob("*")} == {pwd.getpwnam(ALICE).pw_uid}

    status, said = plane.ask("alice", f"/api/jobs/{job}/commands", {"verb": "resume"})
    assert status in (200, 201, 202), said
    until(lambda: steps_of(out, 0)[-1]["pid"] != survivor, "the resumed job")
    assert steps_of(out, 0)[-1]["uid"] == pwd.getpwnam(ALICE).pw_uid
    assert steps_of(out, 0)[-1]["step"] > at - 40
    until(lambda: is_watched(plane, job), "the ranks of the resumed job")
    status, said = plane.ask("alice", f"/api/jobs/{job}/commands", {"verb": "stop"})
    assert status in (200, 201, 202), said
    plane.ended(job)


def test_a_job_of_an_account_is_adopted_and_recovered_live_when_the_state_is_lost(
    own_plane: RootPlane, folder: Path
) -> None:
    out = out_of(folder, ALICE)
    recovery = {"resources": {"workers": 2}, "recovery": {"policy": "live"}}
    training = script(folder, "train.py", TRAIN)
    job = own_plane.submit("alice", training, str(out), "100000", **recovery)
    until(lambda: len(steps_of(out, 1)) > 40, "40 steps")
    survivor = steps_of(out, 0)[-1]["pid"]
    forged = forge_run(own_plane, folder, job, "forged-1")

    own_plane.down()
    for path in (own_plane.home / "plane").glob("state.db*"):
        path.unlink()
    own_plane.up()
    until(lambda: is_watched(own_plane, job) and is_live(own_plane, job), "the ranks to be watched")
    found = own_plane.job(job)
    killed = steps_of(out, 1)[-1]["pid"]
    os.kill(killed, signal.SIGKILL)
    until(lambda: steps_of(out, 1)[-1]["pid"] != killed, "another process of rank 1")
    at = steps_of(out, 1)[-1]["step"]
    until(lambda: steps_of(out, 1)[-1]["step"] > at + 20, "steps after the recovery")

    assert (found["owner"], found["name"], found["state"]) == ("alice", "job", "RUNNING")
    assert steps_of(out, 0)[-1]["pid"] == survivor
    assert {row["uid"] for row in steps_of(out, 1)} == {pwd.getpwnam(ALICE).pw_uid}
    assert [one["id"] for one in own_plane.ask("admin", "/api/jobs")[1]["items"]] == [job], forged
    assert own_plane.ask("admin", f"/api/jobs/{job}", method="DELETE")[0] == 200
    own_plane.ended(job, "CANCELLED")
    until(
        lambda: not [w for w in of_account(ALICE, own_plane.home).values() if "train.py" in w],
        "no rank",
    )


def forge_run(plane: RootPlane, folder: Path, job: str, name: str) -> Path:
    """Have bob make a run that he never submitted, and that says to be somebody else's."""
    record = json.loads((plane.run_folder(ALICE, job) / "status.json").read_text())
    forged = folder / "forged.json"
    forged.write_text(json.dumps({**record, "id": name, "owner": "admin"}))
    run = plane.run_folder(BOB, name)
    attack(BOB, 'mkdir -p "$1"; cp "$2" "$1/status.json"', str(run), str(forged))
    return run


def is_live(plane: RootPlane, job: str) -> bool:
    """Tell whether the plane would recover a job live, by what it has stored."""
    path = plane.home / "plane" / "state.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as opened:
        words = "SELECT count(*) FROM regroupings WHERE job = ?"
        return bool(opened.execute(words, (job,)).fetchone()[0])


def test_root_removes_checkpoints_of_an_account_with_its_rights_alone(
    plane: RootPlane, folder: Path, secret: Path
) -> None:
    out = out_of(folder, ALICE)
    job = plane.submit("alice", script(folder, "train.py", TRAIN), str(out), "80")
    plane.ended(job)
    root = plane.run_folder(ALICE, job) / "checkpoints"
    steps = sorted(int(path.name.rpartition("_")[2]) for path in root.glob("ckpt_step_*"))

    with_plane = plane.loom("checkpoint", "rm", "--yes", job, str(steps[0]))
    until(lambda: not list(root.glob(f"ckpt_step_*{steps[0]}")), "the removal by the plane")
    plane.down()
    without = plane.loom("checkpoint", "rm", "--yes", "--json", job, str(steps[1]))
    unknown = plane.loom("checkpoint", "rm", "--yes", job, str(steps[1]))
    there = sorted(int(path.name.rpartition("_")[2]) for path in root.glob("ckpt_step_*"))
    shutil.copytree(root, secret / "checkpoints")  # root's own
    (secret / "checkpoints").chmod(0o700)
    before = content(secret)
    attack(ALICE, 'mv "$1" "$1.old"; ln -s "$2" "$1"', str(root), str(secret / "checkpoints"))
    linked = plane.loom("checkpoint", "rm", "--yes", job, str(steps[2]))
    plane.up()

    assert with_plane.returncode == 0, with_plane.stderr
    assert json.loads(without.stdout) == [{"step": steps[1], "state": "removed"}], without.stderr
    assert unknown.returncode != 0
    assert b"checkpoint of step" in unknown.stderr
    assert there == steps[2:]
    assert linked.returncode != 0
    assert content(secret) == before


def is_watched(plane: RootPlane, job: str) -> bool:
    """Tell whether the plane sees all ranks of a job, and steps of theirs."""
    ranks = plane.job(job).get("ranks") or []
    return bool(ranks) and all(rank["state"] == "up" for rank in ranks)


def attack(account: str, shell: str, *words: str) -> None:
    done = as_account(account, "sh", "-ec", shell, "sh", *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def secret(folder: Path) -> Path:
    return kept_in(folder / "kept")


def kept_in(kept: Path) -> Path:
    """Make a folder with files that root alone can read."""
    kept.mkdir(mode=0o755)
    for name in ("stdout.log", "status.json", "manifest.json", "worker_0.pt", "experiment.json"):
        (kept / name).write_text(f"{SECRET} {name}\n")
        (kept / name).chmod(0o600)
    return kept


LINKS = """
find "$1/logs" -name stdout.log | while read -r log; do
  rank=$(dirname "$log")
  for name in stdout.log stderr.log times; do
    rm -f "$rank/$name"; ln -s "$2/stdout.log" "$rank/$name"
  done
done
for name in events.jsonl experiment.json source.patch request.json app.json cancel.json
do rm -f "$1/$name"; ln -s "$2/stdout.log" "$1/$name"; done
"""
FIFOS = """
find "$1/logs" -name stdout.log | while read -r log; do
  rank=$(dirname "$log")
  for name in stdout.log stderr.log times; do rm -f "$rank/$name"; mkfifo "$rank/$name"; done
done
for name in events.jsonl status.json experiment.json ../.ended.jsonl
do rm -f "$1/$name"; mkfifo "$1/$name"; done
"""
FOLDER = """
find "$1/logs" -name stdout.log | while read -r log; do
  rank=$(dirname "$log")
  mv "$rank" "$rank.old"; ln -s "$2" "$rank"
done
"""
RENAMED = """
mv "$1" "$1.old"; ln -s "$2/run" "$1"
"""
STATUS = """
rm -f "$1/status.json"; ln -s "$2/status.json" "$1/status.json"
"""
FORGED = """
cp "$3" "$1/status.json"
"""
SELF = """
find "$1/logs" -name stdout.log | while read -r log; do
  rm -f "$log"; ln -s /proc/self/environ "$log"
done
"""


def forge(run: Path, kept: Path) -> None:
    """Write a record by which a run's logs are a folder of root, beside that, for all to read."""
    record = json.loads((run / "status.json").read_text())
    record |= {"log_dir": str(kept), "owner": "root", "checkpoints": f"{kept}/checkpoints"}
    for rank in record["ranks"]:
        rank["logs"] = "."
    (kept / "status.json").write_text(json.dumps(record))
    shutil.copytree(run, kept / "run")
    log = next((kept / "run" / "logs").rglob("stdout.log"))
    log.write_text(f"{SECRET} in a run of root\n")
    log.chmod(0o600)
    record["created_at"] = "yesterday"
    kept.with_suffix(".json").write_text(json.dumps(record))


ATTACKS = ("LINKS", "FIFOS", "FOLDER", "RENAMED", "STATUS", "FORGED", "SELF")


def test_what_an_account_puts_in_its_folder_shows_nothing_of_root(
    plane: RootPlane, folder: Path
) -> None:
    hello = script(folder, "print.py", "print('hello')")
    jobs = {how: plane.submit("alice", hello) for how in ATTACKS}
    kept = {how: kept_in(folder / how) for how in ATTACKS}
    before: dict[str, dict[str, bytes]] = {}
    for how, job in jobs.items():
        plane.ended(job)
        forge(plane.run_folder(ALICE, job), kept[how])
        before[how] = content(kept[how])
        assert "hello" in plane.log_of(job)
        assert "hello" in plane.loom("logs", job).stdout.decode()

    for how, job in jobs.items():
        words = (plane.run_folder(ALICE, job), kept[how], kept[how].with_suffix(".json"))
        attack(ALICE, globals()[how], *map(str, words))

    assert [how for how, job in jobs.items() if SECRET in plane.texts(job)] == []
    assert plane.ask("admin", "/healthz")[0] == 200
    again = plane.submit("bob", script(folder, "more.py", "print('served')"))
    plane.ended(again)
    assert "served" in plane.log_of(again)
    for job in jobs.values():
        plane.loom("rm", job)
    assert {how: content(kept[how]) for how in ATTACKS} == before


def test_what_root_removes_of_a_run_is_what_its_account_could_remove(
    plane: RootPlane, folder: Path, secret: Path
) -> None:
    job = plane.submit("alice", script(folder, "print.py", "print('hello')"))
    plane.ended(job)
    run = plane.run_folder(ALICE, job)
    (secret / job).mkdir()
    (secret / job / "kept").write_text("kept")
    record = json.loads((run / "status.json").read_text())
    forged = folder / "forged.json"
    forged.write_text(json.dumps({**record, "log_dir": str(secret / job)}))
    attack(ALICE, FORGED, str(run), str(secret), str(forged))

    done = plane.loom("rm", job)

    assert not run.exists(), done
    assert (secret / job / "kept").read_text() == "kept"


def test_a_checkpoint_that_is_a_link_is_neither_read_nor_removed_by_root(
    plane: RootPlane, folder: Path, secret: Path
) -> None:
    out = out_of(folder, ALICE)
    job = plane.submit("alice", script(folder, "train.py", TRAIN), str(out), "80")
    plane.ended(job)
    root = plane.run_folder(ALICE, job) / "checkpoints"
    rows = plane.ask("admin", f"/api/jobs/{job}/checkpoints")[1]["items"]
    steps = sorted(row["step"] for row in rows if row["state"] == "committed")
    assert len(steps) >= 3
    assert checked(plane, job, steps[0])["state"] == "whole"
    done = plane.loom("checkpoint", "verify", job, str(steps[0]))
    assert done.returncode == 0, done.stderr
    shutil.copytree(root, secret / "checkpoints")  # root's, and whole
    (secret / "checkpoints").chmod(0o700)
    swap = 'rm -f "$1"; ln -s "$2" "$1"'
    shard, manifest = (next(root.glob(f"ckpt_step_*{step}")) for step in steps[1:3])
    attack(ALICE, swap, str(shard / "worker_0.pt"), str(secret / "worker_0.pt"))
    attack(ALICE, swap, str(manifest / "manifest.json"), str(secret / "manifest.json"))
    attack(ALICE, 'mv "$1" "$1.old"; mkdir "$1"; mv "$1.old"/* "$1"', str(root))
    before = content(secret)

    for step in steps[1:3]:
        found = checked(plane, job, step)
        assert found["state"] in ("damaged", "failed"), found
        assert SECRET not in json.dumps(found)
    attack(ALICE, 'mv "$1" "$1.old"; ln -s "$2" "$1"', str(root), str(secret / "checkpoints"))
    assert checked(plane, job, steps[0])["state"] != "whole"
    assert plane.loom("checkpoint", "verify", job, str(steps[0])).returncode != 0
    plane.ask("admin", f"/api/jobs/{job}/checkpoints/{steps[0]}", method="DELETE")
    assert SECRET not in plane.texts(job)
    plane.loom("rm", job)

    assert content(secret) == before


def checked(plane: RootPlane, job: str, step: int) -> dict[str, Any]:
    """Have the plane read a checkpoint; return what it says of it."""
    path = f"/api/jobs/{job}/checkpoints/{step}/verify"
    status, said = plane.ask("admin", path, {})
    assert status in (200, 202), said

    def over() -> dict[str, Any] | None:
        found: dict[str, Any] = plane.ask("admin", path)[1]
        return found if found.get("state") not in ("waiting", "running") else None

    found: dict[str, Any] = until(over, "the check of a checkpoint")
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, with what they hold."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_account_has_an_agent_of_its_own_which_is_no_node_for_jobs(
    plane: RootPlane, folder: Path
) -> None:
    go = folder / "go"
    theirs = plane.submit("bob", script(folder, "w.py", WAIT), str(go))
    own = plane.submit("alice", script(folder, "v.py", WAIT), str(go))
    until(lambda: "waits" in plane.log_of(theirs) and "waits" in plane.log_of(own), "both jobs")

    assert plane.ask("admin", "/api/cluster/resources")[1]["nodes"] == 1
    agents = [
        w
        for name in (ALICE, BOB)
        for w in of_account(name, plane.home).values()
        if "launch.node_agent" in w
    ]
    marks = {words.split("--agent ")[1].split()[0] for words in agents}
    assert len(marks) == 2
    go.touch()
    plane.ended(theirs)
    plane.ended(own)


def test_an_account_that_speaks_as_its_agent_offers_no_node_and_fails_no_device(
    own_plane: RootPlane, folder: Path
) -> None:
    """A job of the account takes over the line of its agent, and says what only a node's may."""
    if YAMA.exists() and YAMA.read_text() != "0\n":
        pytest.skip(f"{YAMA}: processes of one account cannot take descriptors of each other")
    go, out = folder / "go", out_of(folder, ALICE) / "claimed"
    job = own_plane.submit("alice", script(folder, "w.py", WAIT), str(go))
    until(lambda: "waits" in own_plane.log_of(job), "the job")
    [(agent, words)] = [
        found for found in of_account(ALICE, own_plane.home).items() if "node_agent" in found[1]
    ]
    name = words.split("--agent ")[1].split()[0]
    devices = {one["uuid"]: one["state"] for one in devices_of(own_plane)}

    claim = script(folder, "claim.py", CLAIM)
    claiming = own_plane.submit("alice", claim, str(out), str(agent), name, min(devices))
    own_plane.ended(claiming)
    until(lambda: dropped(own_plane, "foreign_device"), "the report on a device to be read")

    uid = pwd.getpwnam(ALICE).pw_uid
    assert json.loads(out.read_text()) == {"uid": uid, "greeted": name}
    assert own_plane.ask("admin", "/api/cluster/resources")[1]["nodes"] == 1
    assert {one["uuid"]: one["state"] for one in devices_of(own_plane)} == devices
    go.touch()
    own_plane.ended(job)


def devices_of(plane: RootPlane) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.ask("admin", "/api/devices")[1]["items"]
    return found


def dropped(plane: RootPlane, why: str) -> int:
    """Return how many messages the weaver has dropped for a reason."""
    count: int = plane.ask("admin", "/api/plane")[1]["dropped"].get(why, 0)
    return count
