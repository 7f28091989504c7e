"""`loom checkpoint diff` and `export`: the command starts a process that has torch, and tells."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.records.folder import RunFolder

from ..test_json import problems
from .stored import Captured, said

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


@pytest.fixture
def root(ended: Callable[..., Any], state: Path) -> Path:
    """Have a job with two checkpoints, in which one bias differs, and one rate."""
    import torch

    from ...worker.saving.saved import commit, network, state_of, stepped

    ended("train-1", ranks=2)
    root = state / "runs" / "train-1" / "checkpoints"
    model = network()
    optimizer = stepped(model)
    commit(root, 10, *state_of(model, optimizer))
    with torch.no_grad():
        model[0].bias[3] += 2.0  # type: ignore[index]
    optimizer.param_groups[0]["lr"] = 0.025
    commit(root, 20, *state_of(model, optimizer))
    return root


def test_the_tensor_that_differs_is_named_with_its_size(root: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "diff", "train-1", "10", "20")

    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "1 tensor differs, 21 have the same bits"
    assert lines[1].split() == ["TENSOR", "SHAPE", "MAX", "DIFFERENCE", "RELATIVE", "ELEMENTS"]
    assert re.fullmatch(r"model\.0\.bias +8 +2 +\S+ +1 of 8", lines[2])
    assert lines[3:] == ["optimizer.param_groups.0.lr: 0.1 -> 0.025"]


def test_each_side_may_say_its_job(root: Path, capsys: Captured) -> None:
    code, out, _ = said(capsys, "diff", "train-1:10", "20", "--json")

    told = json.loads(out)
    assert code == 0
    assert problems("checkpoint-diff", told) == []
    assert (told["a"], told["b"]) == (
        {"job": "train-1", "step": 10},
        {"job": "train-1", "step": 20},
    )
    assert [one["name"] for one in told["tensors"]] == ["model.0.bias"]


def test_a_checkpoint_is_no_different_from_itself(root: Path, capsys: Captured) -> None:
    code, out, _ = said(capsys, "diff", "train-1", "20", "20")

    assert (code, out) == (0, "no difference: all 22 tensors have the same bits\n")


def test_an_exported_model_is_loaded_by_plain_torch(root: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "export", "train-1", "-o", "model.pt")

    loads = "torch.load('model.pt', weights_only=True)"
    loads = f"import json, torch; print(json.dumps(list({loads})))"
    names = subprocess.run(
        [sys.executable, "-c", loads], capture_output=True, text=True, check=True
    ).stdout
    assert (code, err) == (0, "")
    assert re.fullmatch(r"step 20 of train-1: 7 tensors, .* kB: model\.pt\n", out)
    assert json.loads(names)[:2] == ["0.weight", "0.bias"]


def test_the_step_that_is_named_is_the_one_that_is_exported(root: Path, capsys: Captured) -> None:
    _, told, _ = said(capsys, "export", "train-1", "10", "-o", "a.safetensors", "--json")
    said(capsys, "export", "train-1", "20", "-o", "b.safetensors", "--optimizer")

    assert problems("checkpoint-export", json.loads(told)) == []
    assert json.loads(told)["step"] == 10
    content = Path("a.safetensors").read_bytes()
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert head["__metadata__"] == {"format": "pt", "job": "train-1", "step": "10"}
    assert Path("b.safetensors").stat().st_size > len(content)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["export", "train-1", "-o", "there.pt"], "there.pt exists; --yes replaces it"),
        (["export", "train-1", "-o", "m.onnx"], "the name must end in .pt or .safetensors"),
        (["export", "train-1", "-o", "no/m.pt"], "no does not exist"),
        (["export", "train-1", "5", "-o", "m.pt"], "no checkpoint of step '5'"),
        (["export", "train-1"], "Missing option '-o'"),
        (["diff", "train-1", "10"], "'train-1' is not a step"),
        (["diff", "10"], "name two checkpoints"),
        (["diff", "train-1", "10", "11"], "no checkpoint of step '11'; train-1 has: 20, 10"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    words: list[str], complaint: str, root: Path, capsys: Captured
) -> None:
    Path("there.pt").write_text("mine")

    code, out, err = said(capsys, *words)

    assert (code, out) == (2, "")
    assert complaint in err
    assert [path.name for path in Path().iterdir()] == ["there.pt"]


def test_damage_is_told_by_the_shard(root: Path, capsys: Captured) -> None:
    shard = root / "ckpt_step_00020" / "worker_0.pt"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")

    code, out, err = said(capsys, "export", "train-1", "-o", "m.pt")

    assert (code, out) == (1, "")
    assert "the checkpoint of step 20 is damaged: worker_0.pt: its bytes are not those" in err
    assert not Path("m.pt").exists()


def test_without_torch_here_the_jobs_own_interpreter_is_asked(
    root: Path, tmp_path: Path, loom: Any
) -> None:
    """Hide torch from the command; let the job have run on the Python that has it."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
    )
    request = RunFolder.named("train-1").path / "request.json"
    told = json.loads(request.read_text())
    env = {"PYTHONPATH": str(hidden)}

    without = loom("checkpoint", "diff", "train-1", "10", "20", env=env)
    told["roles"][0]["replicas"][0]["argv"] = [sys.executable, "train.py"]
    request.write_text(json.dumps(told))
    done = loom("checkpoint", "diff", "train-1", "10", "20", env=env)

    assert without.returncode == 2
    assert b"reading tensors needs torch, which" in without.stderr
    assert (done.returncode, done.stdout.splitlines()[:1]) == (
        0,
        [b"1 tensor differs, 21 have the same bits"],
    )
