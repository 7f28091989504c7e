"""TorchX's behaviour, recorded from the real package, is ours but for the listed deviations."""

import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom import specs
from torchloom.specs import api

RECORDINGS = Path(__file__).with_name("recordings")
ABSENT = "(absent)"

# where we differ on purpose: a path into the answers ("*" is any one step) and the reason
DEVIATIONS: dict[tuple[str, ...], str] = {
    ("version",): "the recording's own",
    ("fields", "Resource", "0", "1"): "Resource(cpu=1, memMB=128) has to work: sizes have defaults",
    ("fields", "Resource", "1", "1"): "as above",
    ("fields", "Resource", "2", "1"): "as above",
    ("casts", "dict[str,str]", "a"): "an item without ':' is a ValueError, not an IndexError",
    ("casts", "dict[str,str]", "a:1,"): "an empty item is dropped from maps as it is from lists",
    ("casts", "dict[str,str]", ""): "as above",
    ("cfg_from_str", "ENV=a"): "an item without ':' is a ValueError, not an IndexError",
    ("cfg_from_str", "NAME='"): "one quote alone is text, not an empty pair of quotes",
    ("cfg_from_str", "TAGS='a','b'"): "quotes are taken off only when one pair holds all of it",
    ("unknown", "cfg_from_str", "*"): "an unknown option is dropped with a warning by default",
    ("unknown", "resolve", "*"): "an unknown option is passed through by default",
    ("handles", "a://s/b\nc"): "nothing may follow the app id, not even on a second line",
    ("odd_formats", "*"): "an error we cannot read must not swallow the replica's own line",
    ("json", "*", "roles", "*", "replicas", "*", "state"): "states are names at every level",
}


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ours() -> Any:
    found = importlib.util.spec_from_file_location("questions", RECORDINGS / "questions.py")
    assert found is not None
    assert found.loader is not None
    questions = importlib.util.module_from_spec(found)
    found.loader.exec_module(questions)
    return json.loads(json.dumps(questions.ask(specs, api)))


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the plain values of a tree by their paths; empty containers count as values."""
    if isinstance(value, dict) and value:
        items = list(value.items())
    elif isinstance(value, list) and value:
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {path: value}
    return {p: leaf for key, item in items for p, leaf in leaves(item, (*path, key)).items()}


def differences(mine: Any, theirs: Any) -> dict[tuple[str, ...], tuple[Any, Any]]:
    a, b = leaves(mine), leaves(theirs)
    paths = [*a, *(path for path in b if path not in a)]
    both = {path: (a.get(path, ABSENT), b.get(path, ABSENT)) for path in paths}
    return {path: pair for path, pair in both.items() if pair[0] != pair[1]}


def deviation(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the listed deviation that covers a path, if one does."""
    for listed in DEVIATIONS:
        steps = zip(listed, path, strict=False)
        if len(listed) <= len(path) and all(a in ("*", b) for a, b in steps):
            return listed
    return None


@pytest.mark.usefixtures("utc")
def test_every_answer_is_torchx_s_but_for_the_listed_deviations() -> None:
    theirs = json.loads((RECORDINGS / "torchx.json").read_text())
    mine = ours()
    missing = set(theirs.pop("all")) - set(mine.pop("all"))

    found = differences(mine, theirs)

    assert missing == set()
    assert {path: pair for path, pair in found.items() if deviation(path) is None} == {}
    assert {deviation(path) for path in found} == set(DEVIATIONS)
