"""Which Python and which torch a job started here would get, without importing either."""

import platform
import sys
from collections.abc import Iterator
from importlib import metadata, util

from torchloom.launch.checks.finding import Finding, Place, note, ok, problem

OLDEST = (3, 11)
OLDEST_TORCH = (2, 4)


def python(place: Place) -> Iterator[Finding]:
    """Tell the version and path of the interpreter that ranks get by default."""
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= OLDEST:
        yield ok("python", text)
    else:
        yield problem("python", text, f"use Python {OLDEST[0]}.{OLDEST[1]} or newer")


def torch(place: Place) -> Iterator[Finding]:
    """Torch is not needed to submit; so its absence is said, not blamed."""
    if util.find_spec("torch") is None:
        yield note("torch", "not installed", "to train here: pip install torchloom[torch]")
        return
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # a build on PYTHONPATH
        yield ok("torch", "there, without a version")
        return
    if _numbers(version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield note("torch", f"{version} is old", f"pip install 'torch>={oldest}'")
    else:
        yield ok("torch", version)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
