"""One interpreter that has torch imported, for all planes of a worker's tests: theirs to borrow."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..control.conftest import living
from .home import until

_PATIENCE = 120.0  # seconds, for loaded machines


@pytest.fixture(scope="session")
def hearth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the home of a zygote: a first run that imports torch, under a plane, starts it."""
    folder = tmp_path_factory.mktemp("hearth")
    for name in ("home", "loom", "run"):
        (folder / name).mkdir(mode=0o700)
    (folder / "warm.py").write_text("import torch\n")
    env = {**os.environ, "LOOM_WARM": "1", "OMP_NUM_THREADS": "1"}
    del env["LOOM_PLANE"]
    env |= {"HOME": f"{folder}/home", "LOOM_HOME": f"{folder}/loom"}
    env |= {"XDG_RUNTIME_DIR": f"{folder}/run"}
    loom = [sys.executable, "-m", "torchloom"]
    end_plane = [sys.executable, "-c", "from torchloom.client import plane; plane.leave()"]
    for words in ([*loom, "up"], [*loom, "run", "-d", "--wait", "warm.py"], end_plane):
        subprocess.run(words, cwd=folder, env=env, check=True, capture_output=True)
    until(lambda: list(folder.glob("run/torchloom/zygote-*.sock")), _PATIENCE)
    yield folder
    for pid in living(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until(lambda: not living(folder), _PATIENCE)


def borrow(hearth: Path, runtime: Path, patch: pytest.MonkeyPatch) -> None:
    """Have those whose runtime folder this is find the zygote, and start none of their own.

    Its user's home is theirs, too: what is imported may depend on that.
    """
    made = runtime / "torchloom"
    made.mkdir(mode=0o700, exist_ok=True)
    for path in hearth.glob("run/torchloom/zygote-*"):
        (made / path.name).symlink_to(path)
    patch.setenv("HOME", str(hearth / "home"))
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("LOOM_WARM", "1")
