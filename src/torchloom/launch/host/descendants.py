"""Find and end the processes an app left behind, whatever they did to hide."""

import contextlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path

from torchloom.launch.host.identity import host_name
from torchloom.launch.variables import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    JOB_VARIABLE,
    NODE_VARIABLE,
)
from torchloom.specs.dataclass import dataclass

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class JobShare:
    """A job's share of one node: its processes there.

    Where nodes share one /proc, as containers or two launches that meet on one host, the node's
    name distinguishes theirs from ours.
    """

    app_id: str
    node: str = field(default_factory=host_name)


def become_subreaper() -> None:
    """Make orphans below this process its own children (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def of_app(share: JobShare) -> set[int]:
    """Return every process of this node whose environment carries the app's id."""
    wanted = f"{JOB_VARIABLE}={share.app_id}".encode()
    node = f"{NODE_VARIABLE}=".encode()
    here = node + os.fsencode(share.node)
    found = set()
    for pid in _pids():
        environ = _environ(pid)
        if wanted in environ:
            nodes = [item for item in environ if item.startswith(node)]
            if not nodes or here in nodes:
                found.add(pid)
    return found


def agents_of(share: JobShare, attempt: int | None = None) -> set[int]:
    """Return the guards, launch processes, agents and keepers of an app on this node.

    With an attempt, those that began with it.
    """
    wanted = {
        f"{AGENT_VARIABLE}={share.app_id}".encode(),
        f"{NODE_VARIABLE}={share.node}".encode(),
    }
    if attempt is not None:
        wanted.add(f"{ATTEMPT_VARIABLE}={attempt}".encode())
    return {pid for pid in _pids() if wanted.issubset(_environ(pid))}


def below(ancestor: int, app_id: str) -> set[int]:
    """Return all living descendants of a process, but not other apps' agents and what is theirs.

    With `ancestor` a subreaper this also finds what cleared its environment or made a new session.
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid in _pids():
        parent = _parent_if_alive(pid)
        if parent is not None:
            children[parent].append(pid)
    found: set[int] = set()
    front = list(children[ancestor])
    while front:
        pid = front.pop()
        if not _is_agent_of_another(pid, app_id):
            found.add(pid)
            front.extend(children[pid])
    return found


def remaining(share: JobShare, ancestor: int) -> set[int]:
    """Return what still runs of an app, seen from the subreaper that owns it."""
    return (of_app(share) | below(ancestor, share.app_id)) - {ancestor, os.getpid()}


def in_session(ancestor: int, session: int, app_id: str) -> set[int]:
    """Return the descendants that are in one session, such as what a dead rank left behind."""
    return {pid for pid in below(ancestor, app_id) if _session(pid) == session}


def send(pids: set[int], signum: int) -> None:
    """Signal each; those already gone are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def kill_all(
    share: JobShare,
    ancestor: int,
    patience: float = 10.0,
    collect: Callable[[], object] = lambda: reap(),
) -> set[int]:
    """Kill until nothing is left; return what the kernel did not let die in time.

    New children of the dying are found in the next round. `collect` takes note of the dead.
    """
    deadline = time.monotonic() + patience
    while left := remaining(share, ancestor):
        send(left, signal.SIGKILL)
        collect()
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    return left


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended, adopted ones too, as (pid, wait status)."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def _pids() -> Iterator[int]:
    if not _PROC.is_dir():
        return
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            yield int(entry.name)


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _is_agent_of_another(pid: int, app_id: str) -> bool:
    prefix, own = f"{AGENT_VARIABLE}=".encode(), f"{AGENT_VARIABLE}={app_id}".encode()
    return any(item.startswith(prefix) and item != own for item in _environ(pid))


def _parent_if_alive(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(parent)
