"""Who is at the other end of a unix socket: a process of this user, and of which job."""

import os
import re
import socket
import struct
from pathlib import Path

from torchloom.launch.variables import AGENT_VARIABLE, JOB_VARIABLE

STRANGER = re.compile(r"[A-Za-z0-9_.-]{1,64}-[0-9a-f]{12}")  # ids of launches end otherwise
_PEER = struct.Struct("3i")  # pid, uid, gid
_FURTHEST = 64  # ancestors that are looked at
_VARIABLES = tuple(f"{name}=".encode() for name in (JOB_VARIABLE, AGENT_VARIABLE))


def peer_of(channel: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process that called; where the kernel cannot say, 0 and ours."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.getuid()  # the folder the socket lies in is closed to others
    pid, uid, _ = _PEER.unpack(
        channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    )
    return pid, uid


def may_speak_for(job: str, pid: int, proc: Path = Path("/proc")) -> bool:
    """Tell whether a process belongs to a job: its environment says so, or its parent's.

    The nearest one that names a job decides. A process that nobody launched is a job of its own,
    or belongs to one that no launch can have named.
    """
    if not proc.is_dir():
        return True  # such systems show no environments
    process = pid
    for _ in range(_FURTHEST):
        named = _jobs_named(proc / str(process))
        if named:
            return job in named
        process = _parent(proc / str(process))
        if process <= 0:
            break
    return job == f"local-{pid}" or STRANGER.fullmatch(job) is not None


def start_time(pid: int, proc: Path = Path("/proc")) -> int:
    """Return when a process started, in the kernel's ticks; 0 for one that is gone."""
    fields = _stat(proc / str(pid))
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def _jobs_named(process: Path) -> set[str]:
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return set()
    named = (entry.partition(b"=")[2] for entry in entries if entry.startswith(_VARIABLES))
    return {os.fsdecode(value) for value in named if value}


def _parent(process: Path) -> int:
    fields = _stat(process)
    return int(fields[1]) if len(fields) > 1 else 0


def _stat(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
