"""What TorchX itself makes of command lines, recorded, against what torchloom makes of them."""

import json
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from torchloom.components.defaults import IMAGE
from torchloom.components.finder import get_component
from torchloom.errors import UserError
from torchloom.specs.builders import component_args_from_str, materialize_appdef, parse_mounts

FOLDER = Path(__file__).parent / "recordings"
SAMPLE = FOLDER / "sample_components.py"
RECORDING = json.loads((FOLDER / "torchx.json").read_text())

# Where torchloom differs on purpose: the words, why, and what it makes of the changed field.
DEVIATIONS: dict[str, tuple[str, Callable[[Any], object], object]] = {
    "dist.ddp --script train.py --debug 1": (
        "1 means true, as in run options; TorchX takes every word but `true` for false",
        lambda app: app["roles"][0]["env"]["NCCL_DESYNC_DEBUG"],
        "1",
    ),
    "dist.ddp --script train.py --env FLAGS=--a=1,--b=2": (
        "an equals sign inside a value is kept; TorchX refuses it",
        lambda app: app["roles"][0]["env"]["FLAGS"],
        "--a=1,--b=2",
    ),
    "dist.ddp --script train.py --env A=,B=2": (
        "an empty value is a value; TorchX refuses it",
        lambda app: [app["roles"][0]["env"][name] for name in "AB"],
        ["", "2"],
    ),
    "utils.echo --msg -x": (
        "a value may start with a dash; argparse refuses it",
        lambda app: app["roles"][0]["args"],
        ["-x"],
    ),
    "utils.echo --num-replicas 2": (
        "a dash in a flag means the underscore; TorchX knows only the underscore",
        lambda app: app["roles"][0]["num_replicas"],
        2,
    ),
}


def plain(value: Any) -> Any:
    if is_dataclass(value):
        data = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        name = type(value).__name__
        return {"class": name, **data} if name.endswith("Mount") else data
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def with_our_image(app: dict[str, Any]) -> dict[str, Any]:
    """The default image differs on purpose: torchloom publishes none and names PyTorch's own."""
    theirs = f"ghcr.io/pytorch/torchx:{RECORDING['torchx']}"
    roles = [role | {"image": role["image"].replace(theirs, IMAGE)} for role in app["roles"]]
    return app | {"roles": roles}


def built(words: list[str]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plain(materialize_appdef(get_component(words[0]).fn, words[1:]))


def lines(case: dict[str, Any]) -> str:
    return " ".join(case["words"])


@pytest.fixture(autouse=True)
def _same_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGLEVEL", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


SAME = [app for app in RECORDING["apps"] if "result" in app and lines(app) not in DEVIATIONS]
REFUSED = [app for app in RECORDING["apps"] if "error" in app and lines(app) not in DEVIATIONS]


@pytest.mark.parametrize("case", SAME, ids=lines)
def test_a_command_line_makes_the_app_that_torchx_makes(case: dict[str, Any]) -> None:
    assert built(case["words"]) == with_our_image(case["result"])


@pytest.mark.parametrize("case", REFUSED, ids=lines)
def test_what_torchx_refuses_is_refused_in_words(case: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        built(case["words"])

    assert str(caught.value)
    if case["error"][0] in {"ValueError", "KeyError"}:
        assert case["error"][0] in {cls.__name__ for cls in type(caught.value).__mro__}


@pytest.mark.parametrize("words", DEVIATIONS)
def test_a_deviation_is_still_one_and_does_what_it_says(words: str) -> None:
    _, look, expected = DEVIATIONS[words]
    case = next(app for app in RECORDING["apps"] if lines(app) == words)

    app = built(case["words"])

    assert look(app) == expected
    assert "result" not in case or app != with_our_image(case["result"])


@pytest.mark.parametrize("case", RECORDING["args"], ids=lambda case: str(case["case"]))
def test_words_config_and_defaults_give_the_arguments_that_torchx_gives(
    case: dict[str, Any],
) -> None:
    name, words, defaults, config = case["case"]

    args = component_args_from_str(get_component(f"{SAMPLE}:{name}").fn, words, defaults, config)

    assert plain(args) == case["result"]


@pytest.mark.parametrize("case", RECORDING["mounts"], ids=lambda case: ",".join(case["options"]))
def test_mounts_are_read_as_torchx_reads_them(case: dict[str, Any]) -> None:
    if "error" not in case:
        assert plain(parse_mounts(case["options"])) == case["result"]
        return

    with pytest.raises(UserError) as caught:
        parse_mounts(case["options"])

    assert case["error"][0] in {cls.__name__ for cls in type(caught.value).__mro__}


def test_the_recording_is_large_enough_to_mean_something() -> None:
    assert len(SAME) >= 50
    assert len(REFUSED) >= 15
