"""Keep a few processes alive: each that ends is started again, alone, after a growing pause."""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.launch.keeper.spawn import SpawnOrder, spawn

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds before a process is started again
_LIVED = 10.0  # seconds after which an end is bad luck, not a fault that will come again
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_MOST_LOG = 4 << 20  # bytes of a log, after which it is put aside
LOG_INTERVAL = 2.0  # seconds between two looks at the length of logs
_MOST_OLD = 16 << 20  # bytes that are kept of a log that was put aside
_TAIL = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanePart:
    """One process of the plane: what to execute, with which environment, and where it may talk."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    line: Callable[[socket.socket], None] | None = None  # gets our end of a line, at every start

    def last_words(self) -> str:
        """Return the last line of its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line]
            return lines[-1].strip() if lines else ""
        return ""


@dataclass(slots=True)
class PartProcess:
    """A part and its present life."""

    part: PlanePart
    pid: int | None = None
    started: float = 0.0
    pause: float = FIRST_PAUSE
    due: float | None = None  # when to start it again
    ends: int = 0
    how: str = ""  # it ended the last time


@dataclass(slots=True)
class PartSupervisor:
    """Starts, reaps and starts again. Its owner calls `look` after SIGCHLD and when it is due."""

    clock: Callable[[], float] = time.monotonic
    children: dict[str, PartProcess] = field(default_factory=dict)

    def start(self, part: PlanePart) -> PartProcess:
        """Start a part, from now on to be kept alive."""
        child = self.children.setdefault(part.name, PartProcess(part))
        self._start(child)
        return child

    def look(self) -> float | None:
        """Reap what ended, start what is due; return in how many seconds to look again, if ever."""
        self._reap()
        now = self.clock()
        for child in self.children.values():
            if child.due is not None and child.due <= now:
                self._start(child)
        pending = [child.due for child in self.children.values() if child.due is not None]
        return max(0.0, min(pending) - now) if pending else None

    def bound_logs(self) -> None:
        """Put aside what is too long of each log, while its process writes."""
        for child in self.children.values():
            bound_log(child.part.log)

    def end(self, grace: float = _GRACE) -> None:
        """End all, those started last first; come back when they are gone."""
        for child in reversed(self.children.values()):
            child.due = None
            if child.pid is not None:
                _end(child.pid, grace)
                child.pid = None

    def _start(self, child: PartProcess) -> None:
        child.due, child.started = None, self.clock()
        try:
            child.pid = _execute(child.part)
        except OSError as error:
            self._ended(child, f"cannot start: {error.strerror}: {error.filename}")

    def _reap(self) -> None:
        for child in self.children.values():
            if child.pid is None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, _in_words(os.waitstatus_to_exitcode(status)))

    def _ended(self, child: PartProcess, how: str) -> None:
        now = self.clock()
        if now - child.started > _LIVED:
            child.pause, child.ends = FIRST_PAUSE, 0
        child.pid, child.how = None, how
        child.ends += 1
        child.due = now + child.pause
        child.pause = min(2 * child.pause, LONGEST_PAUSE)
        _log.warning("%s ended (%s); again in %.1f s", child.part.name, how, child.due - now)


def bound_log(path: Path, most: int = _MOST_LOG) -> None:
    """Move what a log holds to `.old`, replacing that, when it is too long.

    The file stays the same, for processes append to it: it is copied, then emptied. What is
    written between the two is lost. Where that fails, it is tried again at the next look.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size <= most:
            return
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        into = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with path.open("rb") as log, open(into, "wb") as copy:
            log.seek(max(0, path.stat().st_size - _MOST_OLD))
            copy.write(log.read(_MOST_OLD))
        partial.replace(path.with_suffix(".old"))
        os.truncate(path, 0)


def _execute(part: PlanePart) -> int:
    """Execute a part in a session of its own; the kernel ends it with us."""
    part.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    bound_log(part.log)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    log = os.open(part.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fds = [null, log, log]
    if part.line is not None:
        ours, theirs = socket.socketpair()
        part.line(ours)
        fds.append(theirs.detach())
    try:
        return spawn(SpawnOrder(part.argv, part.env, os.sep, tuple(fds)))
    finally:
        for fd in {*fds}:
            os.close(fd)


def _end(pid: int, grace: float) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.005)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
