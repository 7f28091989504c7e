"""A plane a module, started by `loom up`, with warm ranks; nothing is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.client.plane import leave

from ..harness.forked_ranks import Zygote
from ..harness.fresh_databases import fresh
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job, Plane, loom


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give all modules one state folder, so that they share a warm interpreter; end that."""
    folder = tmp_path_factory.mktemp("control")
    for name in ("home", "loom", "run", "work"):
        (folder / name).mkdir(mode=0o700)
    yield folder
    for pid in living(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until(lambda: not living(folder), PATIENCE)


@pytest.fixture(scope="module")
def database() -> str:
    """Have the plane keep what it knows in its own files; a module may name a server instead."""
    return ""


@pytest.fixture(scope="module")
def plane(place: Path, database: str) -> Iterator[Plane]:
    """Give a module its plane."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
            patch.setenv(variable, str(place / name))
        for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
            patch.delenv(variable, raising=False)
        patch.setenv("LOOM_WARM", "1")
        patch.setenv("LOOM_DATABASE", database)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(place / "work")
        if not database:
            fresh(place / "loom" / "plane")
        loom("up")
        yield Plane()
        leave()  # `loom down` would end the interpreter that the next module shares


@pytest.fixture(scope="module")
def warm(plane: Plane, place: Path) -> None:
    """Have a zygote, so that ranks need not import torch: a first run that does starts one.

    It leaves when a file that it has imported is edited; then ranks start cold, which is slower.
    """
    Path("warm.py").write_text("import torch\n")
    for _ in range(2):
        loom("run", "-d", "--wait", "warm.py")
        with contextlib.suppress(AssertionError):
            until(lambda: list(place.glob("run/torchloom/zygote-*.sock")), PATIENCE / 4)
            return


@pytest.fixture
def start(plane: Plane, warm: None, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start jobs; whatever still runs is ended after the test."""
    jobs: list[Job] = []

    def begin(script: str, world: int, **env: Any) -> Job:
        jobs.append(Job(script, world, tmp_path / f"job-{len(jobs)}", **env))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


@pytest.fixture(scope="session")
def plain() -> Iterator[Zygote]:
    """Give a process that forks ranks without anything of ours in them."""
    words = [sys.executable, str(Path(__file__).with_name("plain.py"))]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, text=True, env=env, stdin=pipe, stdout=pipe) as one:
        try:
            yield Zygote(one)
        finally:
            one.kill()


def living(folder: Path) -> set[int]:
    """Return every process that was started for a state folder; a zygote has it in its words."""
    wanted, found = f"LOOM_HOME={folder}/loom".encode(), set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                named = any(word.startswith(f"{folder}/run/".encode()) for word in words)
                if named or wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found
