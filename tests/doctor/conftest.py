"""A place to look at: this host, with folders and files of the test's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.doctor.checks import HostPlace

PlaceMaker = Callable[..., HostPlace]


def silent(words: Any, limit: float) -> str:
    raise FileNotFoundError(2, "No such file or directory", words[0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a machine with nothing in it."""
    for folder in ("dev/shm", "proc/self", "sys/class/drm"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    (tmp_path / "root/proc/self/mountinfo").write_text("27 1 254:0 / / rw - ext4 /dev/vda rw\n")
    return tmp_path / "root"


@pytest.fixture
def place(tmp_path: Path, root: Path) -> PlaceMaker:
    """Make a place; no program answers there unless the test brings one."""

    def make(**changes: Any) -> HostPlace:
        known: dict[str, Any] = {
            "env": {"PATH": "/nowhere"},
            "own_host": "localhost",
            "home": tmp_path / "home",
            "runtime": tmp_path / "run",
            "user": "ada",
            "root": root,
            "ask": silent,
        }
        return HostPlace(**{**known, **changes})

    return make
