"""Where libfaketime is, which has a process believe in another time."""

from pathlib import Path


def library() -> Path | None:
    """Return Debian's libfaketime, if it is installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return found[0] if found else None
