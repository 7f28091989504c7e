"""Warm interpreters import what programs have imported before them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.launch.keeper import zygote_client

from ..harness.home import until
from ..harness.plane_jobs import LOOM, PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.needs("torch"), pytest.mark.needs("transformers")]
SCRIPT = """
import os, sys
had = "transformers.trainer" in sys.modules
if "IMPORT" in os.environ:
    from transformers import Trainer
print("found" if had else "missed")
"""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a home in which no program has run yet; its warm interpreters leave."""
    for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("LOOM_PLANE", "0")
    monkeypatch.delenv("LOOM_WARM", raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path
    zygote_client.leave_all()


def run(folder: Path) -> str:
    words = [LOOM, "launch", str(folder / "train.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout.strip()


def test_a_framework_that_a_program_has_imported_is_there_in_later_starts(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(alone)
    monkeypatch.setenv("IMPORT", "1")

    first = run(alone)
    until(lambda: list(alone.glob("loom/cache/learned-*.json")), PATIENCE)
    until(lambda: "found" in run(alone), PATIENCE)
    monkeypatch.delenv("IMPORT")

    assert "missed" in before
    assert "missed" in first
    (learned,) = alone.glob("loom/cache/learned-*.json")
    assert '"transformers.trainer"' in learned.read_text()
    assert "found" in run(alone)
