"""What TorchX's names do, recorded from the real package, torchloom does but for the deviations."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloom.torchx.names import torchx_names

from ..specs.test_torchx_recording import differences

RECORDINGS = Path(__file__).with_name("recordings")

# where we differ on purpose: a path into the answers ("*" is any one step) and the reason
DEVIATIONS: dict[tuple[str, ...], str] = {
    ("overlays", "files", "3"): "a file that is not YAML is a ValueError that names the file",
    ("tracker", "lineage"): "lineage is answered; TorchX has not written it yet",
}


def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = importlib.util.spec_from_file_location("tx_questions", RECORDINGS / "questions.py")
    assert found is not None
    assert found.loader is not None
    questions = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "tx_questions", questions)  # where `inspect` finds its source
    found.loader.exec_module(questions)
    with torchx_names():
        return json.loads(json.dumps(questions.ask(), default=repr))


def deviation(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the listed deviation that covers a path, if one does."""
    for listed in DEVIATIONS:
        steps = zip(listed, path, strict=False)
        if len(listed) <= len(path) and all(a in ("*", b) for a, b in steps):
            return listed
    return None


def test_every_answer_is_torchx_s_but_for_the_listed_deviations(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = json.loads((RECORDINGS / "torchx.json").read_text())
    theirs.pop("version")

    found = differences(ours(monkeypatch), theirs)

    assert {path: pair for path, pair in found.items() if deviation(path) is None} == {}
    assert {deviation(path) for path in found} == set(DEVIATIONS)
