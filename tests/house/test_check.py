"""`make test` runs the few tests that failed beside others once more, alone, and names them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "make"))

from check import memory_folder  # noqa: E402

STEADY = "def test_steady():\n    pass\n"
UNSTEADY = """
from pathlib import Path

def test_unsteady():
    mark = Path(__file__).with_suffix(".tried")
    was_tried = mark.exists()
    mark.touch()
    assert was_tried
"""
BROKEN = (
    "import pytest\n@pytest.mark.parametrize('n', range({}))\ndef test_broken(n):\n    assert 0\n"
)

pytestmark = pytest.mark.process


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Lay out a checkout with the runner, the list of failures, and no tests yet."""
    (tmp_path / "make").mkdir()
    (tmp_path / "tests" / "room").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / "make" / "check.py", tmp_path / "make")
    shutil.copy(ROOT / "tests" / "harness" / "failures.py", tmp_path / "tests")
    (tmp_path / "tests" / "__init__.py").touch()
    hook = "from .failures import pytest_runtest_logreport\n"
    (tmp_path / "tests" / "conftest.py").write_text(hook)
    marks = "[tool.pytest.ini_options]\nmarkers = ['soak: long']\n"
    (tmp_path / "pyproject.toml").write_text(marks)
    return tmp_path


def run(house: Path, **tests: str) -> tuple[int, list[str]]:
    """Run these tests as `make test T=room` does; return the exit code and what was printed."""
    for name, text in tests.items():
        (house / "tests" / "room" / f"test_{name}.py").write_text(text)
    words = [sys.executable, str(house / "make" / "check.py"), "test", "room"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout.splitlines()


def test_what_fails_once_is_named_and_what_fails_twice_has_failed(house: Path) -> None:
    code, printed = run(house, steady=STEADY, unsteady=UNSTEADY, broken=BROKEN.format(1))

    assert code == 1
    assert "FAILED twice tests/room/test_broken.py::test_broken[0]" in printed
    assert "UNSTEADY     tests/room/test_unsteady.py::test_unsteady" in printed
    assert not any("test_steady" in line for line in printed)


def test_what_passes_alone_does_not_fail_the_run_and_is_named(house: Path) -> None:
    code, printed = run(house, steady=STEADY, unsteady=UNSTEADY)

    assert code == 0
    assert "UNSTEADY     tests/room/test_unsteady.py::test_unsteady" in printed


def test_many_that_fail_are_not_tried_again(house: Path) -> None:
    code, printed = run(house, unsteady=UNSTEADY, broken=BROKEN.format(5))

    assert code == 1
    assert not any(line.startswith(("UNSTEADY", "FAILED twice")) for line in printed)


def test_folders_of_unit_tests_are_in_memory_where_it_has_room_and_are_removed(
    tmp_path: Path,
) -> None:
    with memory_folder(tmp_path, least_free=1) as [option, folder]:
        made = [each.is_dir() for each in tmp_path.iterdir()]
    with memory_folder(tmp_path, least_free=2**70) as too_small:
        pass
    with memory_folder(tmp_path / "none", least_free=1) as absent:
        pass

    assert (option, Path(folder).parents[1], made) == ("--basetemp", tmp_path, [True])
    assert (list(tmp_path.iterdir()), too_small, absent) == ([], [], [])
