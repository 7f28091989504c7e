"""What a checkpoint holds, put together from the shards of all ranks."""

import json
import os
from pathlib import Path

import pytest
import torch

from torchloom.checkpoint.errors import Damaged
from torchloom.worker.run.digests import Digests
from torchloom.worker.saving.inspection import read

from .saved import commit, network, state_of, stepped

pytestmark = pytest.mark.needs("torch")


def test_the_model_is_whole_though_each_rank_saved_a_part(tmp_path: Path) -> None:
    model = network()
    optimizer = stepped(model)
    commit(tmp_path, 3, *state_of(model, optimizer, ranks=3))

    found = read(str(tmp_path), 3)

    assert list(found.models()) == ["model"]
    kept, own = found.models()["model"], dict(model.state_dict())
    assert kept.keys() == own.keys()
    assert all(torch.equal(kept[name], own[name]) for name in own)
    assert found.tracked()["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]


def test_digests_are_those_that_a_rank_itself_notes(tmp_path: Path) -> None:
    model = network()
    optimizer = stepped(model)
    shared, owns = state_of(model, optimizer)
    other = {name: tensor + 1 for name, tensor in owns[1]["buffers"]["model"].items()}
    owns = [owns[0], {**owns[1], "buffers": {"model": other}}]
    commit(tmp_path / "store", 3, shared, owns)
    noted = Digests(tmp_path / "digests", rank=0, generation=0)
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for at, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{at}.{key}": value for key, value in state.items()}
    noted.write(3, tensors.items())

    first, second = read(str(tmp_path / "store"), 3).digests()

    line = (tmp_path / "digests" / "rank_0.jsonl").read_text()
    assert first == json.loads(line)["tensors"]
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {f"model.{name}" for name in other}


def test_a_changed_byte_is_damage_and_nothing_of_it_is_read(tmp_path: Path) -> None:
    model = network()
    storage = commit(tmp_path, 3, *state_of(model, None))
    path = Path(storage.place_of(3), "worker_1.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)

    with pytest.raises(Damaged) as caught:
        read(str(tmp_path), 3)

    assert (caught.value.step, caught.value.name) == (3, "worker_1.pt")


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("sprung",)


def test_code_in_a_shard_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blake3 import blake3

    monkeypatch.chdir(tmp_path)
    storage = commit(tmp_path / "store", 3, *state_of(network(), None, ranks=1))
    path = Path(storage.place_of(3), "worker_0.pt")
    torch.save({"format": 1, "shared": {}, "own": {}, "skeleton": _Trap()}, path)
    manifest = Path(storage.place_of(3), "manifest.json")
    (shard,) = storage.manifest(3).shards
    text = manifest.read_text().replace(
        shard.hash, f"blake3:{blake3(path.read_bytes()).hexdigest()}"
    )
    manifest.write_text(text.replace(f'"size": {shard.size}', f'"size": {path.stat().st_size}'))

    with pytest.raises(Damaged, match="cannot be read"):
        read(str(tmp_path / "store"), 3)

    assert not (tmp_path / "sprung").exists()
