"""`loom checkpoint rm`: what is named goes, the newest stays unless it is forced away."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

from ..test_json import problems
from .stored import commit

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def root(ended: Callable[..., Any], state: Path) -> Path:
    """Have a job that is over with three checkpoints; no plane knows of it."""
    ended("train-1", ranks=2)
    root = state / "runs" / "train-1" / "checkpoints"
    for step in (10, 20, 30):
        commit(root, step)
    return root


def there(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.startswith("."))


def removed(capsys: Captured, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["checkpoint", "rm", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_what_is_named_goes_and_the_rest_stays(root: Path, capsys: Captured) -> None:
    code, out, err = removed(capsys, "train-1", "10", "20", "-y")

    assert (code, err) == (0, "")
    assert out == "checkpoint of step 10 removed\ncheckpoint of step 20 removed\n"
    assert there(root) == ["ckpt_step_00030"]


def test_the_newest_stays_and_nothing_else_goes_either(root: Path, capsys: Captured) -> None:
    code, out, err = removed(capsys, "train-1", "10", "30", "-y")

    assert (code, out) == (2, "")
    assert "step 30 is the newest checkpoint of train-1" in err
    assert there(root) == ["ckpt_step_00010", "ckpt_step_00020", "ckpt_step_00030"]


def test_the_newest_that_can_be_gone_on_from_is_the_one_that_stays(
    root: Path, capsys: Captured
) -> None:
    (root / "ckpt_step_00030" / "worker_0.pt").unlink()

    refused = removed(capsys, "train-1", "20", "-y")
    done = removed(capsys, "train-1", "30", "-y")

    assert refused[0] == 2
    assert done[0] == 0
    assert there(root) == ["ckpt_step_00010", "ckpt_step_00020"]


def test_the_newest_goes_by_force(root: Path, capsys: Captured) -> None:
    code, out, _ = removed(capsys, "train-1", "30", "--force", "-y", "--json")

    told = json.loads(out)
    assert (code, told) == (0, [{"step": 30, "state": "removed"}])
    assert problems("checkpoint-rm", told) == []
    assert there(root) == ["ckpt_step_00010", "ckpt_step_00020"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train-1", "-y"], "name the job and the steps to remove"),
        (["train-1", "10", "11", "-y"], "no checkpoint of step '11'; train-1 has: 30, 20, 10"),
        (
            ["train-1", "10"],
            "this removes the checkpoint of step 10; without a terminal, confirm with --yes",
        ),
    ],
)
def test_what_is_refused_has_removed_nothing(
    words: list[str], complaint: str, root: Path, capsys: Captured
) -> None:
    code, out, err = removed(capsys, *words)

    assert (code, out) == (2, "")
    assert complaint in err
    assert len(there(root)) == 3


@pytest.mark.process
def test_on_a_terminal_it_is_asked_first(root: Path, on_terminal: Callable[..., Any]) -> None:
    terminal = on_terminal("checkpoint", "rm", "train-1", "10", "20")

    terminal.expect(b"remove 2 checkpoints? [y/N]: ")
    terminal.send(b"y\n")

    assert terminal.wait() == 0
    assert there(root) == ["ckpt_step_00030"]
