"""The map shows the tree that there is, and the paths that were traced."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("make/map.py", "docs/internals/map.md", "docs/evidence/paths.json")


def check(root: Path) -> int:
    """Ask whether the map of a checkout is that of its tree."""
    words = [sys.executable, str(root / "make" / "map.py"), "--check"]
    return subprocess.run(words, check=False).returncode


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what the map is made of."""
    for name in (*PARTS, "docs/evidence/paths-before.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.process
def test_the_map_is_that_of_the_tree() -> None:
    assert check(ROOT) == 0, "run `make map`"


@pytest.mark.process
def test_a_new_module_is_missed_in_the_map(copy: Path) -> None:
    (copy / "src/torchloom/specs/novel.py").write_text('"""A new module."""\n')

    assert check(copy) == 1


@pytest.mark.process
def test_paths_that_were_traced_again_are_missed_in_the_map(copy: Path) -> None:
    path = copy / "docs/evidence/paths.json"
    path.write_text(path.read_text().replace("cli/main.py", "cli/other.py"))

    assert check(copy) == 1


def test_traced_files_are_in_the_tree() -> None:
    found = json.loads((ROOT / "docs/evidence/paths.json").read_text())["paths"]
    files = {file for path in found.values() for file in path["files"]}

    missing = {file for file in files if not (ROOT / "src/torchloom" / file).exists()}
    assert missing == set(), "trace again: `make paths OUT=docs/evidence/paths.json`"
