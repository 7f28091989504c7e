"""README's table of figures is what the evidence says, and nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(root: Path) -> int:
    """Ask whether README of a checkout has the figures of its evidence."""
    words = [sys.executable, str(root / "make" / "figures.py"), "--check"]
    return subprocess.run(words, check=False).returncode


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what the table is made of."""
    for name in ("README.md", "make/figures.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "evidence", tmp_path / "docs" / "evidence")
    return tmp_path


def test_readme_quotes_the_evidence() -> None:
    assert check(ROOT) == 0, "run `make figures`"


def test_a_figure_that_was_measured_again_is_missed_in_readme(copy: Path) -> None:
    path = copy / "docs" / "evidence" / "bench-launch.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([{**row, "ours": row["ours"] / 2} for row in rows]))

    assert check(copy) == 1


def test_a_figure_that_somebody_wrote_by_hand_is_found(copy: Path) -> None:
    path = copy / "README.md"
    path.write_text(path.read_text().replace("torchrun 2.13.0 |", "torchrun 2.13.0 (slow) |", 1))

    assert check(copy) == 1
