"""A plane of a test's own, with as many slots as it wants, and jobs that note their starts."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..control.conftest import living
from ..harness.fresh_databases import fresh
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Plane, loom
from ..harness.warm_zygote import borrow, hearth

__all__ = ["hearth"]

SCRIPT = """
import os, socket, time
line = " ".join([os.environ["LOOM_JOB"], os.environ["RANK"], socket.gethostname()]) + "\\n"
file = os.open(os.environ["STARTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(file, line.encode())
time.sleep(float(os.environ.get("SECONDS", 0)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a plane of this test lives; its sockets' names must be short."""
    for name in ("home", "loom", "run", "work"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "work" / "note.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def slots() -> int:
    return 4


@pytest.fixture
def plane(
    folder: Path, slots: int, hearth: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Plane]:
    """Give the test a plane; nothing of it is left behind."""
    borrow(hearth, folder / "run", monkeypatch)
    for variable, name in (("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
        monkeypatch.setenv(variable, str(folder / name))
    for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOOM_DEVICES", f"cpu:{slots}")
    monkeypatch.chdir(folder / "work")
    fresh(folder / "loom" / "plane")
    loom("up")
    yield Plane()
    loom("down")
    until(lambda: not living(folder), PATIENCE)


@pytest.fixture
def submit(folder: Path) -> Callable[..., dict[str, Any]]:
    """Submit jobs that write down their starts; return what the door says."""

    def ask(name: str = "note", workers: int = 1, seconds: float = 0, **more: Any) -> Any:
        words = {key: more.pop(key) for key in ("owner", "key") if key in more}
        env = {"STARTS": str(folder / "starts"), "SECONDS": str(seconds)}
        spec = {"name": name, "script": "note.py", "env": env, "resources": {"workers": workers}}
        return door.ask("submit", spec={**spec, **more}, cwd=os.getcwd(), author="test", **words)

    return ask


@pytest.fixture
def starts(folder: Path) -> Callable[[], list[tuple[str, int]]]:
    """Return which rank of which job has started, in order, by the ranks' own words."""

    def read() -> list[tuple[str, int]]:
        path = folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    return read
