"""A shard's file in memory is one that plain torch opens, whatever is saved into it, and again."""

import mmap
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.worker.saving.shard_file import (
    PAGE,
    Image,
    Staging,
    TensorSpec,
    lay_out,
    pickled,
    records,
    signature,
    stand_ins,
)

from .alike import alike

pytestmark = pytest.mark.needs("torch")


def tensors_of_all_kinds() -> dict[str, torch.Tensor]:
    return {
        "float": torch.randn(33, 7),
        "scalar": torch.tensor(3.5),
        "half": torch.randn(5).bfloat16(),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "small": torch.randn(9).to(torch.float8_e4m3fn),
        "whole": torch.arange(5000, dtype=torch.int16),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(4, 6).T,
        "every other": torch.arange(20)[::2],
        "spread": torch.ones(1).expand(3, 4),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }


def filled(tensors: dict[str, torch.Tensor], rest: dict[str, Any], staging: Staging) -> Image:
    image = Image(signature({"shared": tensors, "own": {}}), 0, staging, pin=False)
    image.fill(list(tensors.values()), pickled(rest))
    return image


def test_plain_torch_reads_tensors_of_all_kinds(tmp_path: Path) -> None:
    tensors = tensors_of_all_kinds()
    image = filled(tensors, {"step": 5, "words": ["a"]}, Staging())
    path = tmp_path / "worker_0.pt"

    path.write_bytes(image.content)

    wanted = {"format": 1, "shared": tensors, "own": {}, "step": 5, "words": ["a"]}
    assert alike(torch.load(path, weights_only=True), wanted)
    assert alike(torch.load(path, weights_only=True, mmap=True), wanted)


def test_every_tensor_begins_at_a_page(tmp_path: Path) -> None:
    image = filled(tensors_of_all_kinds(), {}, Staging())
    path = tmp_path / "worker_0.pt"
    path.write_bytes(image.content)

    with path.open("rb") as file:
        found = {name: place for name, place in records(file).items() if name.startswith("data/")}

    assert len(found) == len(tensors_of_all_kinds())
    assert [place.offset % PAGE for place in found.values() if place.size] == [0] * 11
    assert zipfile.ZipFile(path).testzip() == zipfile.ZipFile(path).namelist()[0]  # no checksums


def test_the_next_state_takes_the_same_memory_and_leaves_nothing_of_the_last(
    tmp_path: Path,
) -> None:
    staging = Staging()
    image = filled({"a": torch.zeros(1000)}, {"text": "long" * 1000}, staging)
    memory = staging.memory

    image.fill([torch.ones(1000)], pickled({"text": "short"}))

    (tmp_path / "x.pt").write_bytes(image.content)
    wanted = {"format": 1, "shared": {"a": torch.ones(1000)}, "own": {}, "text": "short"}
    assert alike(torch.load(tmp_path / "x.pt", weights_only=True), wanted)
    assert b"longlong" not in bytes(image.content)
    assert staging.memory is memory


def test_one_thread_alone_copies_the_same_bytes() -> None:
    tensors = tensors_of_all_kinds()
    image = filled(tensors, {"step": 1}, Staging())
    by_torch = bytes(image.content)

    image.fill([torch.zeros_like(item) for item in tensors.values()], pickled({"step": 1}))
    assert bytes(image.content) != by_torch
    image.fill(list(tensors.values()), pickled({"step": 1}), alone=True)

    assert bytes(image.content) == by_torch


def test_values_that_outgrow_their_room_are_noticed() -> None:
    image = filled({"a": torch.zeros(1)}, {}, Staging())

    assert image.has_room(pickled({"text": "x" * 1000}))
    assert not image.has_room(pickled({"text": "x" * 100_000}))


def test_many_tensors_and_none_at_all(tmp_path: Path) -> None:
    for count in (0, 1, 2500):
        tensors = {f"layer.{number}": torch.tensor(float(number)) for number in range(count)}
        (tmp_path / "x.pt").write_bytes(filled(tensors, {"step": 1}, Staging()).content)

        found = torch.load(tmp_path / "x.pt", weights_only=True)

        assert alike(found, {"format": 1, "shared": tensors, "own": {}, "step": 1})


def test_beyond_4_gib_the_layout_is_still_torchs_own(tmp_path: Path) -> None:
    """A sparse file has the size; nothing of it is written or kept in memory but the last bytes."""
    large = TensorSpec(torch.uint8, torch.Size([3 * 2**30]))
    specs = [large, large, TensorSpec(torch.float32, torch.Size([3]))]
    content = dict(zip("abc", stand_ins(specs), strict=True))

    layout = lay_out(content)

    path = tmp_path / "large.pt"
    with path.open("wb") as file:
        file.truncate(layout.size)
        for at, piece in layout.pieces:
            file.seek(at)
            file.write(piece)
        file.seek(layout.records["data/2"].offset)
        file.write(torch.tensor([1.0, 2.0, 3.0]).numpy().tobytes())
    found = torch.load(path, weights_only=True, mmap=True)
    assert [tensor.shape for tensor in found.values()] == [spec.shape for spec in specs]
    assert alike(found["c"], torch.tensor([1.0, 2.0, 3.0]))
    assert layout.records["data/2"].offset > 6 * 2**30
    assert sum(len(piece) for _, piece in layout.pieces) < 10**6


def test_staging_grows_and_is_page_aligned_and_there() -> None:
    staging = Staging()

    staging.ensure(3 * PAGE, pin=False)
    first = staging.memory
    staging.ensure(PAGE, pin=False)

    assert staging.memory is first
    assert torch.frombuffer(first, dtype=torch.uint8).data_ptr() % mmap.PAGESIZE == 0
    staging.ensure(10 * PAGE, pin=False)
    assert staging.size == 10 * PAGE
