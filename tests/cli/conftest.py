"""A state folder a test, the command as a process or on a terminal, and nothing left behind."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.specs.api import AppDef, AppState, Role, app_to_dict

LOOM = str(Path(sys.executable).with_name("loom"))
PATIENCE = 60.0  # seconds; generous, for loaded machines
UNSET = (
    *("LOOMCONFIG", "TORCHXCONFIG", "LOOM_JOB", "LOOM_AGENT_OF", "CUDA_VISIBLE_DEVICES"),
    *("NO_COLOR", "COLUMNS", "PYTHONUNBUFFERED"),
)
# Ctrl-C works on a terminal, also where the tests run in the background and it is ignored.
CONTROLLING = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test a home, a state folder and a working folder; then look what it left."""
    for name in ("home", "loom", "run", "work"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "loom"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(LOOM).parent), os.environ["PATH"]]))
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "loom"
    left = vanishing(tmp_path / "loom")
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == {}, "the test left processes behind"
    assert half_made(tmp_path / "loom") == []


def processes_of(home: Path) -> dict[int, str]:
    """Return every living process that was started for this state folder, but not ourselves."""
    wanted = f"LOOM_HOME={home}".encode()
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = Path(entry.path, "cmdline").read_text()
        except OSError:
            continue
    return found


def vanishing(home: Path) -> dict[int, str]:
    """Return what still runs of a state folder after what is just about to end has ended."""
    deadline = time.monotonic() + PATIENCE / 2
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def half_made(home: Path) -> list[str]:
    """Return the folders of runs that were neither finished nor removed."""
    runs = home / "runs"
    names = [path.name for path in runs.iterdir()] if runs.exists() else []
    return [name for name in names if name.startswith((".new-", ".rm-"))]


def until(happened: Callable[[], Any], what: str = "") -> Any:
    """Wait for a condition and return what it returned."""
    deadline = time.monotonic() + PATIENCE
    while not (result := happened()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain for {what or happened}")
        time.sleep(0.02)
    return result


@pytest.fixture(name="until")
def _until() -> Callable[..., Any]:
    return until


class Loom:
    """The installed command."""

    path = LOOM

    def __init__(self, home: Path) -> None:
        self.home = home
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(
        self, *words: str, stdin: bytes | None = b"", env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run one command line to its end."""
        return subprocess.run(
            [LOOM, *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env={**os.environ, **(env or {})},
            timeout=PATIENCE,
        )

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command line; whatever still runs is killed after the test."""
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [LOOM, *words],
            **{"stdin": subprocess.DEVNULL, "env": dict(os.environ), **pipes, **options},
        )
        self._started.append(process)
        return process

    def ids(self) -> list[str]:
        """Return the ids of all runs."""
        runs = self.home / "runs"
        return sorted(p.name for p in runs.iterdir() if p.name[0] != ".") if runs.exists() else []

    def processes(self) -> dict[int, str]:
        return processes_of(self.home)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        if self.ids():
            self("stop", "--now", *self.ids())


@pytest.fixture
def loom(state: Path) -> Iterator[Loom]:
    """The command, as a process."""
    command = Loom(state)
    yield command
    command.close()


def _without_size(env: Mapping[str, str]) -> dict[str, str]:
    """Leave out what readline, once imported anywhere above, has put in behind Python's back."""
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}


class Terminal:
    """A real terminal with a command on it, which leads the session."""

    def __init__(self, words: Sequence[str], size: tuple[int, int], start: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=_without_size(os.environ),
        )
        self._slave = slave
        self.screen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def send(self, keys: bytes) -> None:
        while keys:
            keys = keys[os.write(self._master, keys) :]

    def expect(self, text: bytes) -> bytes:
        """Read the screen until text is on it; return what stood before, and take both off."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.screen:
            over = self.process.poll() is not None
            if (not self._read(0.1) and over) or time.monotonic() > deadline:
                pytest.fail(f"no {text!r} on the screen: {self.screen[-500:]!r}")
        before, _, self.screen = self.screen.partition(text)
        return before

    def wait(self) -> int:
        """Read the screen until the command has ended; return its code."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self._read(0.05)
            if time.monotonic() > deadline:
                pytest.fail(f"the command does not end: {self.screen[-500:]!r}")
        while self._read(0.05):
            pass
        return self.process.returncode

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def hang_up(self) -> None:
        """Close the window."""
        for fd in (self._master, self._slave):
            os.close(fd)
        self._master = self._slave = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            self.hang_up()

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], patience)
        if ready:
            self.screen += os.read(self._master, 65536)
        return bool(ready)


@pytest.fixture
def on_terminal(loom: Loom) -> Iterator[Callable[..., Terminal]]:
    """Start a command line on a terminal of its own."""
    opened: list[Terminal] = []

    def start(
        *words: str,
        size: tuple[int, int] = (24, 80),
        command: str = LOOM,
        before: str = "",
    ) -> Terminal:
        opened.append(Terminal([command, *words], size, before + CONTROLLING))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def ended(state: Path) -> Callable[..., RunRecord]:
    """Write a run that is over into the state folder, without starting anything."""

    def write(
        app_id: str,
        name: str = "train",
        at: AppState = AppState.SUCCEEDED,
        reason: str = "",
        ranks: int = 1,
        logs: Sequence[str] = (),
        codes: Sequence[int] = (0, 0, 0, 0),
        created_at: str | None = None,
    ) -> RunRecord:
        role = RoleRequest("trainer", (ReplicaRequest(("true",), {}),), ranks, ranks > 1)
        log_dir = state / "runs" / app_id / "logs"
        places = [f"trainer/0/{i}" if ranks > 1 else "trainer/0" for i in range(ranks)]
        record = RunRecord(
            id=app_id,
            name=name,
            session="torchx",
            owner="ada",
            host="host",
            log_dir=str(log_dir),
            created_at=created_at or now(),
            state=at,
            reason=reason,
            started_at=now(),
            ended_at=now(),
            ranks=tuple(
                RankRecord("trainer", 0, i, i, at, exit_code=codes[i], logs=place, ended_at=now())
                for i, place in enumerate(places)
            ),
        )
        app = AppDef(name, [Role("trainer", "", entrypoint="true")])
        request = LaunchRequest(app_id, name, "torchx", "/", str(log_dir), (role,))
        RunFolder.create(request, app_to_dict(app), record).publish()
        for place, text in zip(places, logs, strict=False):
            (log_dir / place).mkdir(parents=True)
            for stream in ("stdout", "combined"):
                (log_dir / place / f"{stream}.log").write_text(text)
        return record

    return write


@pytest.fixture
def script() -> Callable[..., str]:
    """Write a Python script into the working folder."""

    def write(text: str, name: str = "train.py") -> str:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
        return name

    return write
