"""What tests of living apps share: a state folder of their own, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TIMEOUT = 90.0  # seconds, for loaded machines; what takes longer will not come true


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test its own state and runtime folders, project folder and user's home.

    Afterwards every app is ended by force, and none may have left a process: the test fails if so.
    """
    for variable, folder in (("HOME", "user"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / folder))
    for variable in ("LOOMCONFIG", "TORCHXCONFIG", "LOOM_JOB", "LOOM_AGENT_OF"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    yield tmp_path / "loom"
    left = leaving(tmp_path / "loom")
    for pids in left.values():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not any(left.values()), f"processes left by the test's apps: {left}"


def leaving(loom_home: Path) -> dict[str, list[int]]:
    """Return what runs of each app after an agent that was just about to leave has left."""
    deadline = time.monotonic() + TIMEOUT / 3
    while True:
        left = {name: sorted(processes_of(name)) for name in app_ids(loom_home)}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def app_ids(loom_home: Path) -> list[str]:
    """Return the apps that the state folder knows or is about to know."""
    runs = loom_home / "runs"
    names = [entry.name for entry in runs.iterdir()] if runs.is_dir() else []
    return [name.removeprefix(".new-").partition("~")[0] for name in names]


def processes_of(app_id: str) -> set[int]:
    """Return every living process that carries the app's id in its environment: ranks and agents.

    Reads /proc itself, so that it is no witness for the code it checks.
    """
    wanted = {f"LOOM_JOB={app_id}".encode(), f"LOOM_AGENT_OF={app_id}".encode()}
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and wanted & _environ(entry):
            found.add(int(entry.name))
    return found


def until(condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
    """Come back when the condition holds; fail when it does not within the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


def allowed(seconds: float) -> float:
    """Return what something may take here that takes so long on a machine with nothing to do.

    Twice as long, and more where others use the machine: whoever waits for a turn is not slow.
    The load is that of the last minute, or of this moment where that is more.
    """
    load = max(os.getloadavg()[0], _turns())
    return seconds * 2 * max(1.0, load / (os.cpu_count() or 1))


def _turns() -> int:
    """Return how many threads of the machine run, or wait for a processor, right now."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except OSError:  # not Linux
        return 0


def python(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program with torchloom in reach and return what it did."""
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def _environ(process: Path) -> set[bytes]:
    try:
        return set((process / "environ").read_bytes().split(b"\0"))
    except OSError:  # gone, or another user's
        return set()


def children() -> set[str]:
    """Return the processes of this one, whichever of its threads started them."""
    found: set[str] = set()
    for entry in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(entry.read_text().split())
    return found
