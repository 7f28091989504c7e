"""Ask the kernel which processes are left; without /proc it has no answer and none are found."""

import contextlib
from pathlib import Path


def processes_with(variable: str) -> list[int]:
    """Return the living processes whose environment has this `NAME=value`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def processes_named(part: str) -> list[int]:
    """Return the living processes whose command line has this in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if part.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
