"""The package stays folded: deep modules in rooms that a reader can take in.

The counts are printed, so that a change of them is seen; `make house` lists what is behind each.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from .source import parsed

ROOT = Path(__file__).resolve().parents[2]
MOST: dict[str, int] = {
    "modules": 560,
    "p90": 450,
    "one_consumer": 110,
    "class_names_twice": 10,
    "gerund_modules": 0,
    "gerund_folders": 2,
    "callback_slots": 0,
    "callback_assignments": 0,
}
LEAST_MEDIAN = 140  # lines of a module
SMALL = 60  # lines; a module with fewer needs a reason
_ENTRY = "an entry point: other processes and stored scripts start it by this name"
_LIGHT = "imported where start-up counts, without the modules around it"
_SHARED = "used by several modules that do not import each other"
_TORCHX = "a module name of TorchX"
SMALL_MODULES: dict[str, str] = {
    "bus/nats/credentials.py": _SHARED,
    "cli/account_runs.py": _SHARED,
    "cli/site.py": _SHARED,
    "cli/torchrun.py": _ENTRY,
    "client/errors.py": _LIGHT,
    "client/served.py": _SHARED,
    "components/component_test_base.py": _TORCHX,
    "components/defaults.py": _SHARED,
    "doctor/checks.py": "the ordered table of checks",
    "entry_points.py": "the table of entry points",
    "envs/relocate.py": "runs on the other host, in an interpreter without torchloom",
    "launch/host/devices.py": _SHARED,
    "launch/node.py": _ENTRY,
    "launch/per_rank.py": _ENTRY,
    "launch/process.py": _ENTRY,
    "launch/relay.py": _ENTRY,
    "launch/variables.py": _LIGHT,
    "messages/base.py": _SHARED,
    "monitor_cli.py": _ENTRY,
    "rules/membership/faults.py": "used in ranks and the launch process, which may lack msgspec",
    "runner/retention.py": _SHARED,
    "server/pages.py": _SHARED,
    "server/schema.py": _SHARED,
    "server/text.py": _SHARED,
    "specs/sizes/generic.py": _TORCHX,
    "weaver/plane.py": _ENTRY,
    "worker/programs/frameworks.py": "imported before the program's first line",
    "worker/programs/randomness.py": "wraps one function of torch, for several adapters",
    "worker/run/digests.py": _SHARED,
    "worker/start.py": _ENTRY,
    "worker/store.py": _ENTRY,
    "worker/threadlet/site/sitecustomize.py": _ENTRY,
    "worker/train/adapter.py": "the interface of another framework's adapter",
    "worker/zygote.py": _ENTRY,
}
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
    found: dict[str, Any] = module.report(ROOT / "src" / "torchloom", parsed)
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


def test_a_small_module_has_a_reason(figures: dict[str, Any]) -> None:
    found = {name for name, lines in figures["lists"]["small_modules"].items() if lines < SMALL}

    print(f"{len(found)} modules under {SMALL} lines")
    assert found - SMALL_MODULES.keys() == set()
    assert SMALL_MODULES.keys() - found == set(), "no longer small: take it off the list"


def test_no_folder_is_a_drawer(figures: dict[str, Any]) -> None:
    assert figures["folders_over_20"] == {}


def test_every_room_says_what_it_is_for() -> None:
    rooms = (ROOT / "src" / "torchloom").rglob("__init__.py")

    assert [room.as_posix() for room in rooms if not room.read_text().startswith('"""')] == []
