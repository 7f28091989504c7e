"""Keep the processes of a plane running: each that ends is restarted alone, and its log bounded."""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.launch.host.restarter import RestartedProcess
from torchloom.launch.keeper.spawn import SpawnOrder, spawn

_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_MOST_LOG = 4 << 20  # bytes of a log, after which it is put aside
LOG_INTERVAL = 2.0  # seconds between two checks of the length of logs
_MOST_OLD = 16 << 20  # bytes that are kept of a log that was put aside
_TAIL = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanePart:
    """One process of the plane: what to execute, with which environment, and where it logs.

    `connect` is called at every start with our end of a socket pair; the process has the other one
    as descriptor 3.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    connect: Callable[[socket.socket], None] | None = None

    def last_log_line(self) -> str:
        """Return the last line of its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line]
            return lines[-1].strip() if lines else ""
        return ""


class PartProcess(RestartedProcess):
    """A part and the process that runs it."""

    def __init__(self, part: PlanePart, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.part = part

    def execute(self) -> int:
        """Execute the part in a session of its own; the kernel ends it with us."""
        part = self.part
        part.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_log(part.log)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        log = os.open(part.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fds = [null, log, log]
        if part.connect is not None:
            ours, theirs = socket.socketpair()
            part.connect(ours)
            fds.append(theirs.detach())
        try:
            return spawn(SpawnOrder(part.argv, part.env, os.sep, tuple(fds)))
        finally:
            for fd in {*fds}:
                os.close(fd)

    def _plan_restart(self, how: str) -> None:
        super()._plan_restart(how)
        _log.warning("%s ended (%s); again in %.1f s", self.part.name, how, self.wait or 0.0)


@dataclass(slots=True)
class PartSupervisor:
    """Starts, reaps and restarts. Its owner calls `check` after SIGCHLD and when it is due."""

    clock: Callable[[], float] = time.monotonic
    children: dict[str, PartProcess] = field(default_factory=dict)

    def start(self, part: PlanePart) -> PartProcess:
        """Start a part, and restart it from now on whenever it ends."""
        child = self.children.setdefault(part.name, PartProcess(part, self.clock))
        child.start()
        return child

    def check(self) -> float | None:
        """Reap what ended, start what is due; return seconds until the next check, if any."""
        for child in self.children.values():
            if child.pid is not None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.note_end(status)
            child.restart_if_due()
        waits = [child.wait for child in self.children.values() if child.wait is not None]
        return min(waits, default=None)

    def bound_logs(self) -> None:
        """Put aside what is too long of each log, while its process writes."""
        for child in self.children.values():
            bound_log(child.part.log)

    def end(self, grace: float = _GRACE) -> None:
        """End all, those started last first; return when they have ended."""
        for child in reversed(self.children.values()):
            child.give_up()
            if child.pid is not None:
                _end(child.pid, grace)
                child.pid = None


def bound_log(path: Path, most: int = _MOST_LOG) -> None:
    """Move what a log holds to `.old`, replacing that, when it is too long.

    The file stays the same, for processes append to it: it is copied, then emptied. What is
    written between the two is lost. Where that fails, the next check tries again.
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
