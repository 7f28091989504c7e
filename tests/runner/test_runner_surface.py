"""The Runner's and the Scheduler's public methods are TorchX's, but for the listed deviations."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from torchloom.runner import Runner, get_runner
from torchloom.schedulers.api import Scheduler

RECORDINGS = Path(__file__).with_name("recordings")
RECORDED = json.loads((RECORDINGS / "torchx.json").read_text())

ABSENT = {
    "Runner": {
        "build_workspace": "images are built by engines that have images; there is none yet",
        "describe_native": "an engine's own words are not kept apart from what it says of an app",
    },
    "Scheduler": {"describe_native": "as above"},
}
OURS = {
    "Runner": {
        "build": "the app of a component, without a plan of it",
        "scheduler": "an engine by its name, for what only it can do",
    },
    "Scheduler": {"wait": "an engine that can wake us is not polled"},
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "Runner": {
        # a runner without a name writes the handles that TorchX's command line writes
        "__init__": [["name", "POSITIONAL_OR_KEYWORD", "'torchx'"]],
        "wait": [["wait_interval", "POSITIONAL_OR_KEYWORD", "10.0"]],
    },
    "Scheduler": {},
}


def recorder() -> Any:
    found = importlib.util.spec_from_file_location("record", RECORDINGS / "record_torchx.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def expected(name: str) -> dict[str, list[list[str]]]:
    """Return what TorchX's class has, with our deviations put in."""
    methods = {
        method: parameters
        for method, parameters in RECORDED[name].items()
        if method not in ABSENT[name]
    }
    for method, changed in OTHERWISE[name].items():
        other = {parameter[0]: parameter for parameter in changed}
        methods[method] = [other.get(parameter[0], parameter) for parameter in methods[method]]
    return methods


def ours(name: str, cls: type) -> dict[str, list[list[str]]]:
    methods: dict[str, list[list[str]]] = recorder().methods(cls)
    return {method: words for method, words in methods.items() if method not in OURS[name]}


def test_the_runner_has_torchxs_methods_with_its_parameters_in_its_order() -> None:
    assert ours("Runner", Runner) == expected("Runner")


def test_the_scheduler_has_torchxs_methods_with_its_parameters_in_its_order() -> None:
    assert ours("Scheduler", Scheduler) == expected("Scheduler")


def test_a_runner_is_got_as_in_torchx() -> None:
    assert recorder().parameters(get_runner) == RECORDED["get_runner"]


def test_every_deviation_is_one() -> None:
    found = {"Runner": Runner, "Scheduler": Scheduler}
    for name, cls in found.items():
        assert not [method for method in ABSENT[name] if hasattr(cls, method)]
        assert not OURS[name].keys() & RECORDED[name].keys()
