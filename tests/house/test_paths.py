"""The tracer of call paths sees every station that a path is known to pass."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MAKE = Path(__file__).resolve().parents[2] / "make"
pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
STATIONS = {  # by path: process and the room of a file that takes part there
    "run": {
        ("command", "cli"),
        ("launch", "launch"),
        ("zygote", "worker"),
        ("keeper", "launch"),
        ("rank", "worker"),
        ("weaver", "weaver"),
    },
    "set": {
        ("command", "cli"),
        ("weaver", "rules"),
        ("weaver", "bus"),
        ("node agent", "launch"),
        ("rank", "worker"),
    },
    "metric": {
        ("rank", "worker"),
        ("node agent", "bus"),
        ("weaver", "weaver"),
        ("server", "server"),
        ("server", "weaver"),
    },
    "kill": {
        ("keeper", "launch"),
        ("launch", "launch"),
        ("weaver", "rules"),
        ("rank", "worker"),
    },
}


@pytest.fixture(scope="module")
def paths() -> ModuleType:
    """Return the tool, which lies outside of any package."""
    sys.path.insert(0, str(MAKE))
    try:
        spec = importlib.util.spec_from_file_location("paths", MAKE / "paths.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found
    finally:
        sys.path.remove(str(MAKE))


def test_every_path_passes_its_stations(paths: ModuleType) -> None:
    found: dict[str, Any] = paths.summary(paths.trace(1))

    for path, stations in STATIONS.items():
        passed = {
            (process, file.partition("/")[0])
            for process, files in found[path]["by_process"].items()
            for file in files
        }
        assert stations - passed == set(), path
        assert found[path]["own"] < found[path]["median"] < 400
    asked, idle = (found[path]["by_process"].get("zygote", []) for path in ("run", "idle"))
    assert "unix.py" in asked  # every request passes it
    assert set(idle) <= {"worker/process/zygote.py"}  # its own timer: memory, then its socket


def test_files_are_counted_once_and_the_middle_run_counts(paths: ModuleType) -> None:
    nothing = {path: {} for path in paths.PATHS}
    runs = [
        {**nothing, "run": {"rank 1": ["a"], "rank 2": ["a", "b"]}},
        {**nothing, "run": {"rank 3": ["a"]}, "idle": {"rank 1": ["a"], "weaver 4": ["b"]}},
        {**nothing, "run": {"weaver 4": ["a", "b", "c"]}},
    ]

    found = paths.summary(runs)["run"]

    assert (found["median"], found["counts"], found["files"]) == (2, [2, 1, 3], ["a", "b", "c"])
    assert found["own"] == 1  # of 1, 0 and 2
    assert found["by_process"] == {"rank": ["a", "b"], "weaver": ["a", "b", "c"]}
