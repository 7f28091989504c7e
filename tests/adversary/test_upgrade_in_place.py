"""The package is replaced under a running plane and job, as `pip install -U` does it.

In the new copy every module notes when a process that began with the old one imports it: such a
process would be half of each. That may not happen, whatever the processes do afterwards.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchloom

from ..control.conftest import living
from ..harness.fresh_databases import fresh
from ..harness.home import processes_of, until

pytestmark = pytest.mark.process
PATIENCE = 90.0  # seconds
WAYS = ("recovered", "live_ended", "restart")  # out of the loss of a rank
LAST = "blake3"  # a library of what the launch process imports last, when it has time
SCRIPT = """
import os, pathlib, time
out = pathlib.Path(os.environ["OUT"])
(out / f"{os.environ['RANK']}-{os.getpid()}").touch()
while not (out / "end").exists():
    time.sleep(0.02)
"""
TRAINING = """
import hashlib, os, pathlib, time
import torch
import torch.distributed as dist
import torchloom as loom

out, rank = pathlib.Path(os.environ["OUT"]), int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(7)
net = torch.nn.Linear(8, 4)
run = loom.init(project="upgrade")
model = run.wrap(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
run.track(optimizer=optimizer)
(out / f"{rank}-{os.getpid()}").write_text("new" if hasattr(loom, "_is_replaced") else "old")
book = os.open(out / f"book-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for step in run.steps(1_000_000):
    with step:
        own = torch.Generator().manual_seed(2 * step.number + rank)
        model(torch.randn(16, 8, generator=own)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bits = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
        os.write(book, f"{step.number} {hashlib.sha256(bits).hexdigest()}\\n".encode())
    time.sleep(0.02)
"""
PLAIN = """
import hashlib, sys
import torch

torch.manual_seed(7)
net = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(int(sys.argv[1])):
    for rank in range(2):
        own = torch.Generator().manual_seed(2 * step + rank)
        (net(torch.randn(16, 8, generator=own)).square().mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    bits = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
    print(step, hashlib.sha256(bits).hexdigest())
"""
HEADER = """
import torchloom as _root
if not hasattr(_root, "_is_replaced"):
    import os as _os
    with open({late!r}, "a") as _file:
        _file.write(f"{{__name__}} {{_os.getpid()}}\\n")
    raise ImportError(f"{{__name__}} is of a newer torchloom than this process")
"""


class Site:
    """A folder of packages with a copy of ours in it, and a plane that runs from there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.late = folder, folder / "late"
        self.site = folder / "site"
        for name in ("home", "loom", "run", "out", "work"):
            (folder / name).mkdir(mode=0o700)
        self._copy(self.site)
        (folder / "work" / "rank.py").write_text(SCRIPT)
        (folder / "work" / "training.py").write_text(TRAINING)
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
        own = {"HOME": "home", "LOOM_HOME": "loom", "XDG_RUNTIME_DIR": "run", "PYTHONPATH": "site"}
        self.env = {**env, **{name: str(folder / place) for name, place in own.items()}}
        self.env |= {"OUT": str(folder / "out"), "LOOM_WARM": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        self.env |= {"OMP_NUM_THREADS": "1"}
        self._fill(folder / "loom" / "plane")

    def _fill(self, plane: Path) -> None:
        fresh(plane)

    def _copy(self, where: Path) -> None:
        source = Path(torchloom.__file__).parent
        shutil.copytree(source, where / "torchloom", ignore=shutil.ignore_patterns("__pycache__"))

    def warm_up(self) -> None:
        """Have a zygote, by a first run."""
        (self.folder / "work" / "warm.py").write_text("import torch\n")
        self.loom("run", "-d", "--wait", "warm.py")
        until(lambda: list(self.folder.glob("run/torchloom/zygote-*.sock")), PATIENCE)

    def loom(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "torchloom", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            env=self.env,
            cwd=self.folder / "work",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def replace(self) -> None:
        """Put the new package in the place of the old one."""
        new, old = self.folder / "new", self.folder / "old"
        self._copy(new)
        header = HEADER.format(late=str(self.late))
        for path in (new / "torchloom").rglob("*.py"):
            text = path.read_text()
            first = "from __future__ import annotations\n"  # which nothing may stand before
            path.write_text(first * (first in text) + header + text.replace(first, ""))
        root = new / "torchloom" / "__init__.py"
        began = str(self.folder / "began")
        noted = f"import os\nopen({began!r}, 'a').write(str(os.getpid()) + '\\n')\n"
        root.write_text(f"_is_replaced = True\n{noted}" + root.read_text().removeprefix(header))
        (self.site / "torchloom").rename(old)
        (new / "torchloom").rename(self.site / "torchloom")
        shutil.rmtree(old)

    def imported_late(self) -> list[str]:
        return self.late.read_text().splitlines() if self.late.exists() else []

    def is_new(self, pid: int) -> bool:
        """Tell whether a process runs the new package, by its own word."""
        began = self.folder / "began"
        return began.exists() and str(pid) in began.read_text().split()

    def weaver(self) -> int:
        """Return the process that is the weaver, by its command line; 0 while there is none."""
        pids = living(self.folder)
        return next((pid for pid in pids if self.is_named(pid, "torchloom.weaver")), 0)

    def ranks(self) -> dict[int, list[int]]:
        """Return the living processes of each rank, by the files that they wrote."""
        found: dict[int, list[int]] = {0: [], 1: []}
        for path in (self.folder / "out").glob("[01]-*"):
            rank, pid = map(int, path.name.split("-"))
            if Path(f"/proc/{pid}").exists():
                found[rank].append(pid)
        return found

    def book(self, rank: int) -> dict[int, str]:
        """Return the weights behind each step, by a rank; one that was repeated has the same."""
        path, found = self.folder / "out" / f"book-{rank}", dict[int, str]()
        for line in read(str(path)).splitlines():
            number, digest = line.split()
            assert found.setdefault(int(number), digest) == digest, f"rank {rank}, step {number}"
        return found

    def passes(self, more: int = 20) -> None:
        """Come back when both ranks have done so many more steps."""
        goals = [max(self.book(rank), default=0) + more for rank in (0, 1)]
        until(lambda: all(max(self.book(r), default=0) >= goals[r] for r in (0, 1)), PATIENCE)

    def happened(self, job: str) -> list[tuple[str, str]]:
        """Return kind and reason of what happened to a job, read past the plane."""
        path = self.folder / "loom" / "plane" / "state.db"
        query = "select kind, reason from events where job = ? order by seq"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return base.execute(query, (job,)).fetchall()

    def versions(self) -> list[str]:
        """Return which package each living rank has, by its own word."""
        out = self.folder / "out"
        return [(out / f"{rank}-{pid}").read_text() for rank, [pid] in self.ranks().items()]

    def warmth(self, job: str) -> str:
        """Return how the ranks were started last, by the record of the run."""
        path = self.folder / "loom" / "runs" / job / "status.json"
        ranks = json.loads(path.read_bytes())["ranks"]
        return next((one["warmth"] for one in ranks if one["warmth"] != "warm"), "warm")

    def zygotes(self) -> list[int]:
        return [
            pid
            for pid in living(self.folder)
            if self.is_named(pid, "torchloom.worker.process.zygote")
        ]

    def is_named(self, pid: int, word: str) -> bool:
        """Tell whether a word is in a command line."""
        return word in read(f"/proc/{pid}/cmdline").split("\0")

    def show(self, job: str) -> Any:
        return json.loads(self.loom("show", "--json", job))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    subprocess.run(
        [sys.executable, "-P", "-m", "torchloom", "down"],
        env=made.env,
        capture_output=True,
        check=False,
    )
    for pid in living(tmp_path):
        os.kill(pid, signal.SIGKILL)


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has just ended
        return ""


def old_processes(site: Site, job: str) -> set[int]:
    """Return what belongs to the job and is no rank: launch process, agent, keeper."""
    ranks = {pid for pids in site.ranks().values() for pid in pids}
    return processes_of(job) - ranks


def test_a_job_and_its_processes_outlive_a_replaced_package_and_the_plane_becomes_the_new_one(
    site: Site,
) -> None:
    site.loom("up")
    words = ("run", "-d", "--json", "-n", "2", "--max-retries", "2", "rank.py")
    job = json.loads(site.loom(*words))["id"]
    until(lambda: all(site.ranks().values()), PATIENCE)
    before, first = old_processes(site, job), site.ranks()
    until(lambda: any(LAST in read(f"/proc/{pid}/maps") for pid in before), PATIENCE)

    site.replace()
    os.kill(first[0][0], signal.SIGKILL)
    until(lambda: all(site.ranks().values()) and site.ranks()[0] != first[0], PATIENCE)

    assert old_processes(site, job) >= before
    assert site.imported_late() == []
    weaver = site.weaver()
    assert not site.is_new(weaver)
    os.kill(weaver, signal.SIGKILL)
    until(lambda: site.weaver() not in (0, weaver) and site.is_new(site.weaver()), PATIENCE)
    plane = set(living(site.folder)) - processes_of(job)
    site.loom("down")
    until(lambda: not plane & set(living(site.folder)), PATIENCE)
    site.loom("up")
    shown = site.show(job)
    assert (shown["state"], shown["attempt"]) == ("RUNNING", 2), shown
    (site.folder / "out" / "end").touch()
    until(lambda: site.show(job)["state"] == "COMPLETED", PATIENCE)
    until(lambda: not processes_of(job), PATIENCE)
    assert site.imported_late() == []


def plain_weights(steps: int) -> dict[int, str]:
    """Return what the training has behind each step, computed with nothing of ours."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", PLAIN, str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {int(number): digest for number, digest in pairs}


def trained(site: Site) -> str:
    """Start the training, and return it when both ranks are in it and nothing is left to load."""
    shutil.rmtree(site.folder / "out")
    (site.folder / "out").mkdir()
    words = ("run", "-d", "--json", "-n", "2", "--policy", "live", "--max-retries", "2")
    job: str = json.loads(site.loom(*words, "training.py"))["id"]
    until(lambda: all(site.book(rank) for rank in (0, 1)), PATIENCE)
    launching = [pid for pid in processes_of(job) if site.is_named(pid, "loom-launch")]
    until(lambda: any(LAST in read(f"/proc/{pid}/maps") for pid in launching), PATIENCE)
    until(lambda: "live" in dict(site.happened(job)), PATIENCE)
    return job


def stopped(site: Site, job: str) -> None:
    """Stop the training; both ranks have what a plain program computes, to the last bit."""
    site.loom("stop", job)
    until(lambda: not processes_of(job), PATIENCE)
    weights = [site.book(rank) for rank in (0, 1)]
    assert abs(len(weights[0]) - len(weights[1])) <= 1  # one may have noted the last step alone
    assert weights == [plain_weights(len(book)) for book in weights]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_rank_that_is_killed_after_the_package_was_replaced_is_recovered_live(
    is_warm: bool, site: Site
) -> None:
    site.env["LOOM_WARM"] = str(int(is_warm))
    site.loom("up")
    if is_warm:
        site.warm_up()
    job = trained(site)
    first = site.ranks()
    assert (site.warmth(job) == "warm", site.versions()) == (is_warm, ["old", "old"])

    site.replace()
    os.kill(first[0][0], signal.SIGKILL)
    until(lambda: site.ranks()[0] not in ([], first[0]), PATIENCE)
    site.passes()

    assert [kind for kind, _ in site.happened(job) if kind in WAYS] == ["recovered"]
    assert (site.ranks()[1], site.versions()) == (first[1], ["new", "old"])
    assert ("has changed since it was imported" in site.warmth(job)) == is_warm
    if not is_warm:  # what it takes is the same
        saves_and_restarts(site, job)
    stopped(site, job)
    assert site.imported_late() == []


def saves_and_restarts(site: Site, job: str) -> None:
    """Have the old agent commit a checkpoint, and the old launch process restart all from it."""
    step = json.loads(site.loom("checkpoint", "--json", job))["effective_step"]
    before = site.ranks()
    for [pid] in before.values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(site.ranks()[r] not in ([], before[r]) for r in before), PATIENCE)
    site.passes()

    events = json.loads(site.loom("show", "--events", "--json", job))
    resumed = [each["step"] for each in events if each["event"] == "resuming"]
    assert (resumed, site.versions()) == ([step], ["new", "new"])


@pytest.mark.needs("torch")
def test_a_job_after_the_package_was_replaced_has_nothing_of_the_old_one(site: Site) -> None:
    site.env["LOOM_WARM"] = "1"
    site.loom("up")
    site.warm_up()
    [zygote] = site.zygotes()

    site.replace()
    job = trained(site)
    assert (site.warmth(job) != "warm", site.versions()) == (True, ["new", "new"])
    stopped(site, job)
    until(lambda: site.zygotes() and zygote not in site.zygotes(), PATIENCE)
    until(lambda: list(site.folder.glob("run/torchloom/zygote-*.sock")), PATIENCE)
    job = trained(site)

    assert (site.warmth(job), site.versions()) == ("warm", ["new", "new"])
    stopped(site, job)
    assert site.imported_late() == []
