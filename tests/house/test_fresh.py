"""`make fresh`: a newcomer's clone, tools and environment; the whole visit is a long test."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "make"))

from fresh import environment  # noqa: E402


def test_a_newcomer_keeps_only_what_reaches_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("PIP_CACHE_DIR", "/cache")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("LOOM_HOME", "/elsewhere")

    env = environment(tmp_path)

    assert env["PIP_INDEX_URL"] == "https://index"
    assert env["HTTPS_PROXY"] == "http://proxy"
    assert {"PIP_CACHE_DIR", "PYTHONPATH", "LOOM_HOME"}.isdisjoint(env)
    assert (env["HOME"], env["PATH"]) == (str(tmp_path / "home"), str(tmp_path / "bin"))
    assert env["PIP_NO_CACHE_DIR"] == "1"


@pytest.mark.soak
def test_a_newcomer_can_demo_and_check() -> None:
    words = [sys.executable, str(ROOT / "make/fresh.py")]

    done = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)

    assert done.returncode == 0
