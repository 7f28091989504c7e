"""`loom checkpoint verify`: everything is read and hashed; damage is named and is exit code 1."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import main

from ..test_json import problems
from .stored import commit

Captured = pytest.CaptureFixture[str]
OTHER_BYTES = "its bytes are not those that were committed"


@pytest.fixture
def root(ended: Callable[..., Any], state: Path) -> Path:
    ended("train-1", ranks=2)
    return state / "runs" / "train-1" / "checkpoints"


def verified(capsys: Captured, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["checkpoint", "verify", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def flip(root: Path, step: int, name: str) -> None:
    """Change one bit of a shard; its size stays."""
    path = root / f"ckpt_step_{step:05d}" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_newest_is_read_and_found_whole(root: Path, capsys: Captured) -> None:
    commit(root, 10)
    commit(root, 20)

    code, out, err = verified(capsys, "train-1")

    assert (code, err) == (0, "")
    assert out.startswith("the checkpoint of step 20 is whole: 2 shards, 6 B hashed in ")


def test_one_bit_is_damage_and_the_shard_is_named(root: Path, capsys: Captured) -> None:
    commit(root, 10)
    commit(root, 20)
    flip(root, 20, "worker_1.pt")

    newest, older = verified(capsys, "train-1"), verified(capsys, "train-1", "10")

    assert newest == (
        1,
        "",
        f"loom: the checkpoint of step 20 is damaged: worker_1.pt: {OTHER_BYTES}\n",
    )
    assert older[0] == 0


def test_all_are_checked_and_the_damaged_are_counted(root: Path, capsys: Captured) -> None:
    for step in (10, 20, 30):
        commit(root, step)
    flip(root, 10, "worker_0.pt")
    (root / "ckpt_step_00030" / "manifest.json").write_text("{")

    code, out, err = verified(capsys, "train-1", "--all")

    assert code == 1
    newest, middle, oldest = out.splitlines()
    assert newest.startswith("the checkpoint of step 30 is damaged: manifest.json: not JSON")
    assert middle.startswith("the checkpoint of step 20 is whole: ")
    assert oldest == f"the checkpoint of step 10 is damaged: worker_0.pt: {OTHER_BYTES}"
    assert err == "loom: 2 of 3 checkpoints of train-1 are damaged\n"


def test_programs_get_the_shard_and_the_reason(root: Path, capsys: Captured) -> None:
    commit(root, 10)
    flip(root, 10, "worker_0.pt")

    code, one, _ = verified(capsys, "train-1", "10", "--json")
    _, every, _ = verified(capsys, "train-1", "--all", "--json")

    told = json.loads(one)
    assert code == 1
    assert {**told, "seconds": 0} == {
        "job": "train-1",
        "step": 10,
        "state": "damaged",
        "shard": "worker_0.pt",
        "reason": OTHER_BYTES,
        "place": str(root / "ckpt_step_00010"),
        "trainer": "",
        "path": "",
        "bytes": None,
        "shards": None,
        "seconds": 0,
    }
    assert problems("checkpoint-verify", told) == problems("checkpoint-verify", json.loads(every))
    assert problems("checkpoint-verify", told) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train-1", "7"], "no checkpoint of step '7'; train-1 has: 10"),
        (["train-1", "ten"], "'ten' is not a step"),
        (["train-1", "10", "20"], "unexpected argument '20'; give only one step"),
        (["train-1", "10", "--all"], "--all cannot be combined with STEP"),
        (["train-1", "--steps", "3"], "--steps and --keep need --replay"),
        (["nobody"], "no job 'nobody'"),
        (["10"], "no job is active; name one, or @ for the newest"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], complaint: str, root: Path, capsys: Captured
) -> None:
    commit(root, 10)

    code, out, err = verified(capsys, *words)

    assert (code, out) == (2, "")
    assert complaint in err
