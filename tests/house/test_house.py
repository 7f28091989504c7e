"""The figures of how the package is folded see what they are to see."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "make" / "house.py"
Report = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def report() -> Report:
    spec = importlib.util.spec_from_file_location("house", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Report = module.report
    return found


def package(folder: Path, **files: str) -> Path:
    """Write a package; two underscores in a name stand for a folder."""
    root = folder / "torchloom"
    for name, text in {"__init__": "", **files}.items():
        path = root / f"{name if name.startswith('__') else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return root


def test_every_way_of_using_a_module_counts(tmp_path: Path, report: Report) -> None:
    root = package(
        tmp_path,
        a="from torchloom import b\nfrom torchloom.room import thing\n",
        b="def f():\n    from .room import lazy\n",
        room__lazy="",
        room__handed="thing = 1\n",
        c='RUN = ("-m", "torchloom.room.started")\n',
        room__started='"""Not used by its own name: torchloom.room.lazy."""\n',
    )
    (root / "room" / "__init__.py").write_text("from torchloom.room.handed import thing as thing\n")

    found = report(root)

    assert found["lists"]["one_consumer"] == {
        "b.py": "a.py",
        "room/handed.py": "a.py",
        "room/lazy.py": "b.py",
        "room/started.py": "c.py",
    }
    assert found["one_consumer_at_import"] == 2


def test_slots_that_are_set_from_outside_are_found(tmp_path: Path, report: Report) -> None:
    root = package(
        tmp_path,
        part=(
            "class Part:\n    def __init__(self, given):\n        self.given = given\n"
            "        self.on_end: Callable[[], None] = lambda: None\n"
            "        self.leave = lambda: None\n        self.own = lambda: None\n"
        ),
        whole=(
            "class Whole:\n    def wire(self, part):\n"
            "        self.part.on_end = part.leave = self.f\n"
            "        part.a, part.on_b = 1, self.f\n        self.part.name = 'x'\n"
        ),
    )

    found = report(root)["lists"]

    assert found["callback_slots"] == ["part.py: Part.leave", "part.py: Part.on_end"]
    assert [each.partition(" ")[2] for each in found["callback_assignments"]] == [
        "part.leave",
        "self.part.on_end",
        "part.on_b",
    ]


def test_names_are_counted_wherever_they_are(tmp_path: Path, report: Report) -> None:
    root = package(
        tmp_path,
        a="class _Row:\n    pass\n",
        saving__b="class Outer:\n    class _Row:\n        pass\n",
        going_on="",
        string="",
    )

    found = report(root)

    assert found["lists"]["class_names_twice"] == {"_Row": ["a.py", "saving/b.py"]}
    assert (found["lists"]["gerund_modules"], found["gerund_folders"]) == (["going_on.py"], 1)
    assert (found["modules"], found["lines"]) == (4, 5)
