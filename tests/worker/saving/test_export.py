"""The model of a checkpoint as a file that torch, or any reader of safetensors, opens alone."""

import json
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.errors import Failure, MissingExtra, UserError
from torchloom.worker.saving.export import export
from torchloom.worker.saving.inspection import read

from .saved import commit, network, state_of, stepped

pytestmark = pytest.mark.needs("torch")


def exported(root: Path, file: Path, **more: Any) -> dict[str, Any]:
    asked = {"file": str(file), "job": "train-1", "step": 3, "optimizer": False, "replace": False}
    return export(read(str(root), 3), {**asked, **more})


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, torch.nn.Module, torch.optim.Optimizer]:
    model = network()
    optimizer = stepped(model)
    commit(tmp_path / "store", 3, *state_of(model, optimizer))
    return tmp_path / "store", model, optimizer


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]]]:
    """Read the format by its description, with nothing of ours."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    body = content[8 + length :]
    metadata = head.pop("__metadata__")
    ends = sorted(tuple(one["data_offsets"]) for one in head.values())
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]  # without holes
    assert ends[-1][1] == len(body)
    assert length % 8 == 0
    return metadata, {
        name: (one["dtype"], one["shape"], body[slice(*one["data_offsets"])])
        for name, one in head.items()
    }


def test_a_pt_file_is_the_models_own_state_dict(
    trained: tuple[Path, torch.nn.Module, Any], tmp_path: Path
) -> None:
    root, model, _ = trained

    told = exported(root, tmp_path / "model.pt")

    other = network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    own, theirs = model.state_dict(), other.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    assert told == {"tensors": 7, "bytes": (tmp_path / "model.pt").stat().st_size}
    assert told["bytes"] < 10_000  # not the shards that its tensors were views of


def test_optimizers_come_along_when_asked_for(
    trained: tuple[Path, torch.nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    root, model, optimizer = trained

    exported(root, tmp_path / "all.pt", optimizer=True)

    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert list(found) == ["model", "optimizer"]
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(found["optimizer"])
    assert torch.equal(
        again.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_whatever_was_tracked_is_loaded_without_running_code(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    tracked = {"mine": {"seen": numpy.arange(3), "word": b"abc", "pair": (1, [2.5, None])}}
    shared = {"models": {"model": {"w": torch.ones(2)}}, "tracked": {}}
    commit(tmp_path / "store", 3, shared, [{"buffers": {}, "tracked": tracked}])

    exported(tmp_path / "store", tmp_path / "all.pt", optimizer=True)

    found = torch.load(tmp_path / "all.pt", weights_only=True)["mine"]
    assert found.pop("seen").tolist() == [0, 1, 2]
    assert found == {"word": bytearray(b"abc"), "pair": (1, [2.5, None])}


def test_safetensors_is_read_by_its_description(
    trained: tuple[Path, torch.nn.Module, Any], tmp_path: Path
) -> None:
    root, model, _ = trained

    exported(root, tmp_path / "model.safetensors")

    metadata, found = read_safetensors(tmp_path / "model.safetensors")
    assert metadata == {"format": "pt", "job": "train-1", "step": "3"}
    types = {torch.float32: "F32", torch.int64: "I64"}
    assert found == {
        name: (types[tensor.dtype], list(tensor.shape), tensor.numpy().tobytes())
        for name, tensor in model.state_dict().items()
    }


def test_plain_values_of_optimizers_are_in_the_metadata(
    trained: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    exported(trained[0], tmp_path / "all.safetensors", optimizer=True)

    metadata, found = read_safetensors(tmp_path / "all.safetensors")

    assert "optimizer.state.0.exp_avg" in found
    assert "model.0.weight" in found
    assert json.loads(metadata["values"])["optimizer.param_groups.0.lr"] == 0.1


def test_a_file_that_is_there_is_kept_unless_it_may_go(
    trained: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    file = tmp_path / "model.pt"
    file.write_text("mine")

    with pytest.raises(UserError, match="is there already"):
        exported(trained[0], file)
    kept = file.read_text()
    exported(trained[0], file, replace=True)

    assert kept == "mine"
    assert len(torch.load(file, weights_only=True)) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "store"]


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_disk_that_takes_no_more_leaves_nothing(
    ending: str, trained: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))

    try:
        with pytest.raises(Failure, match=r"cannot write .*File too large"):
            exported(trained[0], tmp_path / f"model.{ending}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_numbers_that_safetensors_does_not_know_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    odd = {"x": torch.zeros(2, dtype=torch.complex128)}
    commit(tmp_path / "store", 3, {"models": {"model": odd}, "tracked": {}}, [{"buffers": {}}])

    with pytest.raises(UserError, match="complex128, which safetensors cannot hold"):
        exported(tmp_path / "store", tmp_path / "model.safetensors")

    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_without_the_package_the_extra_is_named_and_nothing_is_written(
    trained: tuple[Path, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)

    with pytest.raises(MissingExtra, match=r"pip install 'torchloom\[safetensors\]'"):
        exported(trained[0], tmp_path / "model.safetensors")

    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_checkpoint_without_a_model_says_so(tmp_path: Path) -> None:
    commit(tmp_path / "store", 3, {"models": {}, "tracked": {}}, [{"buffers": {}}])

    with pytest.raises(UserError, match="has no model"):
        exported(tmp_path / "store", tmp_path / "model.pt")


def test_two_models_are_told_apart_by_their_names(tmp_path: Path) -> None:
    weights = {"w": torch.ones(2)}
    shared = {"models": {"generator": weights, "critic": weights}, "tracked": {}}
    commit(tmp_path / "store", 3, shared, [{"buffers": {}}])

    exported(tmp_path / "store", tmp_path / "both.pt")
    exported(tmp_path / "store", tmp_path / "both.safetensors")

    found = torch.load(tmp_path / "both.pt", weights_only=True)
    assert {name: list(state) for name, state in found.items()} == {
        "generator": ["w"],
        "critic": ["w"],
    }
    assert set(read_safetensors(tmp_path / "both.safetensors")[1]) == {"generator.w", "critic.w"}
