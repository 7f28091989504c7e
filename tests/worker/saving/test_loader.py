"""What is loaded is what was saved, on any number of ranks; what was touched is never loaded."""

import gc
import io
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from torchloom.checkpoint import Damaged, Draft, LocalStorage, NotCommitted, Shard
from torchloom.checkpoint.layout import shard_name
from torchloom.worker.saving import Reader, load

from .alike import alike
from .world import commit, local, manifest_of

pytestmark = pytest.mark.needs("torch")


def trained() -> dict[str, Any]:
    """Return the state of a model with tied weights, its optimizer and its schedule."""
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)
    )
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    schedule.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": schedule.state_dict(),
    }


def own_of(rank: int) -> dict[str, Any]:
    """Return what only one rank has."""
    generator = torch.Generator().manual_seed(rank)
    return {
        "rng": generator.get_state(),
        "python": random.Random(rank).getstate(),
        "loader": {"epoch": 1, "position": rank * 100},
        "buffers": [torch.full((3,), float(rank))],
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_rank_gets_the_whole_and_its_own(tmp_path: Path, world_size: int) -> None:
    storage = local(tmp_path)
    shared, owns = trained(), [own_of(rank) for rank in range(world_size)]
    manifest = commit(storage, 7, shared, owns)

    for rank in range(world_size):
        loaded = load(storage, 7, Reader(rank, world_size))

        assert (loaded.step, loaded.manifest, loaded.exact_world) == (7, manifest, True)
        assert alike(loaded.shared, shared)
        assert alike(loaded.own, owns[rank])


def test_each_tensor_is_in_one_shard_and_torch_opens_every_shard(tmp_path: Path) -> None:
    storage = local(tmp_path)
    shared = trained()
    commit(storage, 7, shared, [own_of(rank) for rank in range(3)])

    files = [
        torch.load(Path(storage.place_of(7)) / shard_name(rank), weights_only=True)
        for rank in range(3)
    ]

    names = [name for file in files for name in file["shared"]]
    assert len(names) == len(set(names)) == 23
    assert "shared.model.2.weight" not in names
    assert [file["rank"] for file in files] == [0, 1, 2]
    assert [sorted(file["skeleton"]) for file in files] == [["own", "shared"], ["own"], ["own"]]
    weight = next(
        f["shared"][n] for f in files for n in f["shared"] if n == "shared.model.0.weight"
    )
    assert alike(weight, shared["model"]["0.weight"])


def test_another_number_of_ranks_gets_the_whole(tmp_path: Path) -> None:
    storage = local(tmp_path)
    shared, owns = trained(), [own_of(rank) for rank in range(2)]
    commit(storage, 7, shared, owns)

    found = [load(storage, 7, Reader(rank, 4)) for rank in range(4)] + [
        load(storage, 7, Reader(0, 1))
    ]

    assert all(alike(loaded.shared, shared) for loaded in found)
    assert [loaded.exact_world for loaded in found] == [False] * 5
    assert [loaded.own["loader"]["position"] for loaded in found] == [0, 100, 0, 0, 0]


def test_loaded_state_can_be_trained_with(tmp_path: Path) -> None:
    storage = local(tmp_path)
    commit(storage, 7, trained(), [{}])
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)
    )
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())

    loaded = load(storage, 7, Reader(0, 1))
    model.load_state_dict(loaded.shared["model"])
    optimizer.load_state_dict(loaded.shared["optimizer"])
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()

    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_only_what_is_lent_keeps_the_file_in_memory(tmp_path: Path) -> None:
    storage = local(tmp_path)
    shared, own = {"models": torch.randn(5000), "optimizer": torch.randn(5000)}, {"n": np.arange(9)}
    commit(storage, 7, shared, [own])
    place = storage.place_of(7)

    loaded = load(storage, 7, Reader(0, 1), lent=("shared.models",))

    assert alike(loaded.shared, shared)
    assert alike(loaded.own, own)
    assert place in Path("/proc/self/maps").read_text()
    del loaded.shared["models"]
    gc.collect()
    assert place not in Path("/proc/self/maps").read_text()


def test_what_is_written_to_loaded_state_does_not_reach_the_file(tmp_path: Path) -> None:
    storage = local(tmp_path)
    shared = {"model": torch.randn(5000)}
    commit(storage, 7, shared, [{}])

    load(storage, 7, Reader(0, 1)).shared["model"].zero_()

    storage.verify(7)
    assert alike(load(storage, 7, Reader(0, 1)).shared, shared)


def test_bytes_touched_anywhere_are_damage_never_other_values(tmp_path: Path) -> None:
    storage = local(tmp_path)
    manifest = commit(storage, 7, trained(), [own_of(0), own_of(1)])
    place = Path(storage.place_of(7))
    dice = random.Random(5)

    for _ in range(50):
        shard = dice.choice(manifest.shards)
        content = bytearray((place / shard.name).read_bytes())
        at = dice.randrange(len(content))
        content[at] ^= dice.randrange(1, 256)
        with restored(place / shard.name):
            (place / shard.name).write_bytes(content)

            with pytest.raises(Damaged) as damaged:
                load(storage, 7, Reader(0, 2))

        assert (damaged.value.step, damaged.value.name) == (7, shard.name)
    load(storage, 7, Reader(0, 2))


@pytest.mark.parametrize("harm", ["missing", "short", "long", "empty", "manifest"])
def test_harmed_files_are_damage(tmp_path: Path, harm: str) -> None:
    storage = local(tmp_path)
    commit(storage, 7, trained(), [own_of(0), own_of(1)])
    place = Path(storage.place_of(7))
    path = place / ("manifest.json" if harm == "manifest" else "worker_1.pt")
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        harms = {"short": content[:-1], "long": content + b"x", "empty": b"", "manifest": b"{}"}
        path.write_bytes(harms[harm])

    with pytest.raises(Damaged) as damaged:
        load(storage, 7, Reader(0, 2))

    assert damaged.value.name == path.name


def test_a_step_that_is_not_there_is_not_damage(tmp_path: Path) -> None:
    with pytest.raises(NotCommitted):
        load(local(tmp_path), 7, Reader(0, 1))


class Canary:
    """Unpickled by anything careless, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def hostile(kind: str, canary: Canary) -> bytes:
    """Return a file that runs code in a careless reader, or is no state of ours."""
    file = io.BytesIO()
    ours = {"format": 1, "step": 7, "rank": 0, "world_size": 1, "shared": {}, "own": {}}
    if kind == "pickle":
        return pickle.dumps(canary)
    if kind == "torchscript":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(canary, 2))
            archive.writestr("archive/constants.pkl", pickle.dumps(canary, 2))
    else:
        contents = {
            "zip": canary,
            "inside": {**ours, "skeleton": {"own": canary, "shared": None}},
            "list": [1, 2],
            "no skeleton": ours,
            "other rank": {**ours, "rank": 1, "skeleton": {"own": None, "shared": None}},
            "lost": {**ours, "skeleton": {"own": ("<tensor>", "own.x"), "shared": None}},
            "no tensor": {**ours, "own": {"x": 1}, "skeleton": {"own": None, "shared": None}},
        }
        torch.save(contents[kind], file)
    return file.getvalue()


KINDS = ["pickle", "zip", "inside", "torchscript", "list", "no skeleton"]
KINDS += ["other rank", "lost", "no tensor"]


@pytest.mark.filterwarnings("ignore:.*TorchScript")
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_shard_runs_nothing_and_is_damage(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    storage = local(tmp_path)
    canary = tmp_path / "canary"
    commit_bytes(storage, 7, hostile(kind, Canary(canary)))

    with pytest.raises(Damaged) as damaged:
        load(storage, 7, Reader(0, 1))

    assert damaged.value.name == "worker_0.pt"
    assert not canary.exists()


def test_the_canary_sings_for_a_careless_reader(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "x.pt").write_bytes(hostile("zip", Canary(canary)))

    torch.load(tmp_path / "x.pt", weights_only=False)

    assert canary.exists()


def commit_bytes(storage: LocalStorage, step: int, content: bytes) -> None:
    """Commit any bytes as the shard of a single rank, with their true hash."""
    written = storage.write_shard(Draft(step, 0, 0), shard_name(0), [memoryview(content)])
    assert written.hash == f"blake3:{blake3(content).hexdigest()}"
    shard = Shard(shard_name(0), written.size, written.hash, 0)
    storage.commit(Draft(step, 0, 0), manifest_of(step, [shard]))


class restored:  # noqa: N801  a context, named as it reads
    """Put a file's bytes back at the end."""

    def __init__(self, path: Path) -> None:
        self._path, self._content = path, path.read_bytes()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._path.write_bytes(self._content)
