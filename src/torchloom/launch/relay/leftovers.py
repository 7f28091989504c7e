"""Take over what agents of jobs on this host could not bring to the plane before they were gone."""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from torchloom.bus import subjects

_HOST = "host"  # in the spool of a job's agent: where it is, or was


def sign(spool: Path, host: str) -> None:
    """Say in a spool whose it is, so that the next agent of the host may take it over."""
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # then it stays where it is
        (spool / _HOST).write_text(host)


def adopt(spool: Path, host: str) -> None:
    """Move what lies in spools of this host without an agent into one's own, before it is opened.

    The agent of a job takes over those of its own job alone: the weaver accepts no others of it.
    """
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in sorted(spool.parent.iterdir()):
        if other != spool and _is_of(other, host) and _may_send(spool.name, other.name):
            with contextlib.suppress(OSError):  # somebody has it, or was faster
                _move(other, spool)


def _is_of(spool: Path, host: str) -> bool:
    with contextlib.suppress(OSError):
        return (spool / _HOST).read_text() == host
    return False


def _may_send(agent: str, other: str) -> bool:
    return subjects.job_mark(agent) in ("", subjects.job_mark(other))


def _move(other: Path, spool: Path) -> None:
    lock = os.open(other / "lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for life in other.iterdir():
            if life.is_dir() and not life.name.startswith("."):
                life.rename(spool / life.name)
        shutil.rmtree(other)
    finally:
        os.close(lock)
