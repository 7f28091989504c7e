"""What a trainer saves in its own way: listed, hashed, and known again or not."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from torchloom.checkpoint import BadManifest, Damaged, Manifest, NotHashed, TrainerFiles, survey

from .scenarios import commit, manifest_of, write
from .worlds import LocalWorld

CONTENTS = {"model.bin": b"weights", "optimizer/0.bin": b"moments", "empty": b""}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Give a folder as a trainer leaves it, with a link that is none of its files."""
    folder = tmp_path / "checkpoint-20"
    for name, content in CONTENTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "latest").symlink_to("model.bin")
    return folder


def flip(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"Weights")


def cut(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"w")


def lose(folder: Path) -> None:
    (folder / "model.bin").unlink()


def test_all_plain_files_are_listed_with_size_and_hash(saved: Path) -> None:
    found = survey("transformers", str(saved), 2)

    assert (found.kind, found.path, found.training) == ("transformers", str(saved), 2)
    assert {file.name: (file.size, file.hash) for file in found.files} == {
        name: (len(content), f"blake3:{blake3(content).hexdigest()}")
        for name, content in CONTENTS.items()
    }
    assert TrainerFiles.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    found.verify(20)


def test_a_trainer_may_save_one_file(saved: Path) -> None:
    found = survey("lightning", str(saved / "model.bin"))

    assert [(file.name, file.size) for file in found.files] == [(".", 7)]
    found.verify(20)
    cut(saved)
    with pytest.raises(Damaged, match=r"model.bin: has 1 bytes, not 7"):
        found.verify(20)


@pytest.mark.parametrize("damage", [flip, cut, lose])
def test_a_file_that_is_not_what_was_saved_is_found_and_named(
    saved: Path, damage: Callable[[Path], None]
) -> None:
    found = survey("transformers", str(saved))
    damage(saved)

    with pytest.raises(Damaged) as raised:
        found.verify(20)
    assert raised.value.name == str(saved / "model.bin")


def test_several_readers_check_every_file_once(saved: Path) -> None:
    found = survey("transformers", str(saved))

    parts = [found.part(index, 2).files for index in range(2)]
    assert sorted(file.name for part in parts for file in part) == sorted(CONTENTS)


def test_files_that_change_while_they_are_read_are_not_recorded(saved: Path) -> None:
    with pytest.raises(NotHashed, match="changed while they were read"):
        survey("transformers", str(saved), pace=lambda: flip(saved))


def test_nothing_is_recorded_of_an_empty_or_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    for name in ("missing", "empty"):
        with pytest.raises(NotHashed):
            survey("transformers", str(tmp_path / name))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "No Word"},
        {"path": "relative"},
        {"path": "/a\nb"},
        {"training": 0},
        {"files": []},
        {"files": [["/etc/passwd", 1, "blake3:" + "0" * 64]]},
        {"files": [["a/../../b", 1, "blake3:" + "0" * 64]]},
        {"files": [["a", -1, "blake3:" + "0" * 64]]},
        {"files": [["a", 1, "md5:0"]]},
        {"files": ["a"]},
    ],
)
def test_what_no_trainer_has_saved_is_refused(saved: Path, change: dict[str, object]) -> None:
    value = survey("transformers", str(saved)).to_dict()

    with pytest.raises(BadManifest):
        TrainerFiles.from_dict({**value, **change})


def with_trainer(world: LocalWorld, step: int, saved: Path, generation: int = 0) -> Manifest:
    """Commit a checkpoint beside what a trainer saved; return its manifest."""
    trainer = survey("transformers", str(saved))
    manifest = dataclasses.replace(manifest_of(step, generation), trainer=trainer)
    world.storage.commit(write(world.storage, step, generation), manifest)
    return manifest


def test_a_store_knows_damage_and_loss_of_what_a_trainer_saved(saved: Path, tmp_path: Path) -> None:
    world = LocalWorld(tmp_path / "checkpoints")
    commit(world.storage, 10)
    manifest = with_trainer(world, 20, saved)
    assert world.storage.manifest(20) == manifest
    world.storage.verify(20)

    flip(saved)
    with pytest.raises(Damaged):
        world.storage.verify(20)
    assert world.storage.latest() == 20  # ranks hash the files, and report what is damaged

    saved.rename(tmp_path / "away")
    assert world.storage.latest() == 10


def test_a_trainer_that_saves_a_step_again_replaces_what_it_overwrote(
    saved: Path, tmp_path: Path
) -> None:
    world = LocalWorld(tmp_path / "checkpoints")
    with_trainer(world, 20, saved)
    flip(saved)

    again = with_trainer(world, 20, saved, generation=1)

    assert world.storage.manifest(20) == again
    assert "ckpt_step_00020.bad" in world.names()
