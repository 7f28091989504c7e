"""The processes of jobs on one host: found by their sessions, as batch systems find them."""

import contextlib
import os
import signal
from pathlib import Path


def in_sessions(sessions: set[int]) -> set[int]:
    """Return every living process of these sessions."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" and int(fields[3]) in sessions:
                found.add(int(entry))
    return found


def carrying(mark: str) -> set[int]:
    """Return every living process that has this NAME=value in its environment."""
    found, wanted = set(), mark.encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.add(int(entry))
    return found


def send_all(pids: set[int], name: str) -> None:
    """Send a signal to each of them that still is, to a shell before the child that it waits for.

    The other way round the shell may end by the child's exit code before its own signal is there.
    """
    for pid in sorted(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[name])
