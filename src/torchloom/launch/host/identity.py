"""Name a process so that no other can be taken for it: host, boot, pid and start time."""

import contextlib
import os
import select
import signal
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from torchloom.specs.dataclass import dataclass

_LINUX = sys.platform == "linux"
_POLL = 0.5  # where the kernel cannot tell of an exit, ask twice a second


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process. A pid alone is reused; this is not."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the process that has this pid now, or nothing when none does."""
        started = _start_time(pid)
        return cls(host_name(), boot_id(), pid, started) if started else None

    @classmethod
    def mine(cls) -> "ProcessIdentity":
        """Return the calling process."""
        return cls(host_name(), boot_id(), os.getpid(), _start_time(os.getpid()) or "")

    @classmethod
    def of_session(cls) -> "ProcessIdentity | None":
        """Return the leader of our session: on a terminal the shell; nothing once that is gone.

        Every terminal, window of tmux and ssh login has a session of its own.
        """
        return cls.of(os.getsid(0))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ProcessIdentity":
        return cls(data["host"], data["boot"], data["pid"], data["started"])

    def is_here(self) -> bool:
        """Tell whether this machine, since its last boot, is where the process lived."""
        return self.boot == boot_id()

    def is_alive(self) -> bool:
        """Tell whether this very process still runs; a zombie does not."""
        return self.is_here() and _start_time(self.pid) == self.started

    def send(self, signum: int) -> bool:
        """Signal this very process; false when it is gone. A reused pid is never hit."""
        if not _LINUX:
            with contextlib.suppress(ProcessLookupError):
                if self.is_alive():
                    os.kill(self.pid, signum)
                    return True
            return False
        with _pidfd(self.pid) as fd:
            if fd is None or not self.is_alive():
                return False
            try:
                signal.pidfd_send_signal(fd, signum)
            except ProcessLookupError:
                return False
            return True

    def wait_exit(self, timeout: float | None = None) -> bool:
        """Sleep until the process is gone; false when the timeout came first."""
        if not _LINUX:
            return self._poll_exit(timeout)
        with _pidfd(self.pid) as fd:
            if fd is None or not self.is_alive():
                return True
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            return bool(poller.poll(None if timeout is None else max(0, timeout * 1000)))

    def _poll_exit(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive():
            left = _POLL if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_POLL, left))
        return True


@contextlib.contextmanager
def _pidfd(pid: int) -> Any:
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


@cache
def host_name() -> str:
    """Return this host's name as the kernel has it."""
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return what changes with every boot of this host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import subprocess

        found = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True)
        return f"{host_name()} {found.stdout.strip()}"


def _start_time(pid: int) -> str | None:
    """Return when the process started, in the kernel's own units; nothing for dead or zombie."""
    if not _LINUX:
        return _start_time_ps(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _start_time_ps(pid: int) -> str | None:
    import subprocess

    shown = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True
    )
    state, _, started = shown.stdout.strip().partition(" ")
    return started.strip() if state and not state.startswith("Z") else None
