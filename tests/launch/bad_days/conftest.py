"""A machine as a user has it, and witnesses that are not ours: `/proc` and the apps' own files."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PATIENCE = 90.0  # seconds; generous, for loaded machines


class Machine:
    """One user's state folder, and the shells that use it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.runtime = root / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.env = {
            **os.environ,
            "LOOM_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "LOOMCONFIG": "",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "torchloom", *words]

    def loom(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command in a shell of its own, to its end."""
        return subprocess.run(
            self.command(*words), env=self.env, cwd=self.root, capture_output=True, text=True
        )

    def shell(self, *words: str) -> subprocess.Popen[str]:
        """Start one command in a shell of its own, and go on."""
        return subprocess.Popen(
            self.command(*words),
            env=self.env,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, *words: str) -> str:
        """Start an app and return its id."""
        done = self.loom("run", "-d", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().rpartition("/")[2]

    def script(self, text: str) -> str:
        """Return a shell command line's argument that runs this bash text."""
        path = self.root / f"script{len(list(self.root.glob('script*')))}.sh"
        path.write_text(text)
        return str(path)

    def show(self, app_id: str) -> dict[str, Any]:
        done = self.loom("show", app_id, "--json")
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown

    def listed(self) -> dict[str, str]:
        """Return what `ls` says: id -> state."""
        return {job["id"]: job["state"] for job in json.loads(self.loom("ls", "--json").stdout)}

    def team(self, app_id: str) -> "Team":
        """Return who serves an app, from /proc: all carry its id, the record names the launcher."""
        wanted = f"LOOM_AGENT_OF={app_id}".encode()
        until(lambda: processes_of(app_id), "a rank is up")
        pids = [pid for pid in all_pids() if wanted in environ(pid)]
        guard = next(pid for pid in pids if parent(pid) not in pids)
        keeper = next(at for rank in processes_of(app_id) if (at := parent(rank)) in pids)
        record = json.loads((self.home / "runs" / app_id / "status.json").read_text())
        launcher = record["launcher"]["pid"]
        agent = next(pid for pid in pids if pid not in (guard, keeper, launcher))
        return Team(guard, launcher, agent, keeper)


class Team(NamedTuple):
    """The processes that serve one app."""

    guard: int
    launcher: int
    agent: int
    keeper: int


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def processes_of(app_id: str) -> list[int]:
    """Return every process that carries the app's id, by /proc alone."""
    return [pid for pid in all_pids() if f"LOOM_JOB={app_id}".encode() in environ(pid)]


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait for a condition, not for a time."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience} s: {what}"
        time.sleep(0.01)


def leaving(marker: bytes) -> list[int]:
    """Return what still runs after a guard that was just about to leave has left."""
    deadline = time.monotonic() + PATIENCE / 3
    while left := [pid for pid in all_pids() if pid != os.getpid() and marker in environ(pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return left


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine whose apps are all gone afterwards, with their agents."""
    made = Machine(tmp_path)
    yield made
    left = leaving(f"XDG_RUNTIME_DIR={made.runtime}".encode())
    for pid in left:
        subprocess.run(["kill", "-9", str(pid)], check=False)
    assert not left, f"processes left behind: {left}"
