"""The package is replaced under a running plane and job, as `pip install -U` does it.

In the new copy every module notes when a process that began with the old one imports it: such a
process would be half of each. That may not happen, whatever the processes do afterwards.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchloom

from ..control.conftest import living
from ..living import processes_of, until
from ..weaver.fresh import fresh

pytestmark = pytest.mark.process
PATIENCE = 90.0  # seconds
LAST = "blake3"  # a library of what the launch process imports last, when it has time
SCRIPT = """
import os, pathlib, time
out = pathlib.Path(os.environ["OUT"])
(out / f"{os.environ['RANK']}-{os.getpid()}").touch()
while not (out / "end").exists():
    time.sleep(0.02)
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
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
        own = {"HOME": "home", "LOOM_HOME": "loom", "XDG_RUNTIME_DIR": "run", "PYTHONPATH": "site"}
        self.env = {**env, **{name: str(folder / place) for name, place in own.items()}}
        self.env |= {"OUT": str(folder / "out"), "LOOM_WARM": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        fresh(folder / "loom" / "plane")

    def _copy(self, where: Path) -> None:
        source = Path(torchloom.__file__).parent
        shutil.copytree(source, where / "torchloom", ignore=shutil.ignore_patterns("__pycache__"))

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
        for pid in living(self.folder):
            words = read(f"/proc/{pid}/cmdline").split("\0")
            if "torchloom.weaver" in words:
                return pid
        return 0

    def ranks(self) -> dict[int, list[int]]:
        """Return the living processes of each rank, by the files that they wrote."""
        found: dict[int, list[int]] = {0: [], 1: []}
        for path in (self.folder / "out").glob("[01]-*"):
            rank, pid = map(int, path.name.split("-"))
            if Path(f"/proc/{pid}").exists():
                found[rank].append(pid)
        return found

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
