"""The package stays folded: deep modules in rooms that a reader can take in.

The counts are printed, so that a change of them is seen; `make house` lists what is behind each.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST: dict[str, int] = {
    "modules": 560,
    "p90": 450,
    "one_consumer": 120,
    "class_names_twice": 30,
    "gerund_modules": 12,
    "gerund_folders": 3,
    "callback_slots": 35,
}
LEAST_MEDIAN = 125  # lines of a module
_MODEL = "the HTTP model of it: its class name is a schema name of the public OpenAPI document"
CLASS_NAMES: dict[str, str] = {  # that several classes have, and why
    "Command": _MODEL,
    "Device": _MODEL,
    "Event": _MODEL,
    "Knob": f"a job's spec declares one, a rank's message has one; {_MODEL}",
    "Resources": _MODEL,
    "Run": f"the public class of a program; {_MODEL}",
    "Stacks": _MODEL,
    "State": "each pure rule's own: `step(state, event)`; a rule is imported as a module",
}


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("house", ROOT / "make" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.report(ROOT / "src" / "torchloom")
    return found


@pytest.mark.parametrize("name", MOST)
def test_a_figure_is_within_its_bound(figures: dict[str, Any], name: str) -> None:
    print(f"{name}: {figures[name]} of {MOST[name]}")

    assert figures[name] <= MOST[name], figures["lists"].get(name)


def test_a_class_name_means_one_thing_or_its_reason_is_listed(figures: dict[str, Any]) -> None:
    found = figures["lists"]["class_names_twice"]

    assert {name: found[name] for name in found.keys() - CLASS_NAMES.keys()} == {}
    assert CLASS_NAMES.keys() - found.keys() == set()


def test_modules_are_deep(figures: dict[str, Any]) -> None:
    print(f"median: {figures['median']} lines")

    assert figures["median"] >= LEAST_MEDIAN


def test_no_folder_is_a_drawer(figures: dict[str, Any]) -> None:
    assert figures["folders_over_20"] == {}


def test_every_room_says_what_it_is_for() -> None:
    rooms = (ROOT / "src" / "torchloom").rglob("__init__.py")

    assert [room.as_posix() for room in rooms if not room.read_text().startswith('"""')] == []
