"""What makes the dashboard: it says why it cannot, builds nothing that is built, keeps up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..harness.dashboard_build import ROOT

pytestmark = pytest.mark.process


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Have a copy of a checkout build its dashboard where there is no Node."""
    env = {**os.environ, "PATH": str(folder / "empty")}
    script = str(folder / "make" / "dashboard.py")
    return subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, env=env, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "make").mkdir()
    shutil.copy(ROOT / "make" / "dashboard.py", tmp_path / "make")
    sources = tmp_path / "dashboard" / "src"
    sources.mkdir(parents=True)
    (sources / "main.ts").write_text("1")
    return tmp_path


def test_without_node_and_with_nothing_built_it_says_why(checkout: Path) -> None:
    done = make(checkout)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("no dashboard: it takes Node 20 or newer")


def test_what_is_built_of_the_present_sources_is_taken_and_of_others_is_not(
    checkout: Path,
) -> None:
    words = "import dashboard; print(dashboard.fingerprint())"
    script = [sys.executable, "-c", words]
    found = subprocess.run(script, cwd=checkout / "make", capture_output=True, text=True).stdout
    dist = checkout / "dashboard" / "dist"
    dist.mkdir()
    (dist / ".sources").write_text(found)

    current = make(checkout)
    (checkout / "dashboard" / "src" / "main.ts").write_text("2")
    old = make(checkout)

    assert (current.returncode, current.stdout) == (0, f"{dist}\n")
    assert old.returncode == 3


def test_what_the_dashboard_knows_of_the_api_is_what_the_api_is() -> None:
    words = [sys.executable, str(ROOT / "make" / "openapi.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
