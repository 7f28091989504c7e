"""What is read before it is asked for is what would be read then, or nothing."""

import threading
from pathlib import Path

import pytest
import torch

from torchloom.checkpoint import Damaged
from torchloom.worker.saving import Reader, hashed, load
from torchloom.worker.saving.loader import Prefetch

from .alike import alike
from .world import commit, local

pytestmark = pytest.mark.needs("torch")

SHARED = {"models": {"net": {"a": torch.randn(3000), "b": torch.randn(5, 7)}}}
OWNS = [{"buffers": {"net": {"n": torch.full((3,), float(rank))}}} for rank in range(3)]


def test_shards_read_ahead_are_those_asked_for_and_handed_out_once(tmp_path: Path) -> None:
    storage = local(tmp_path)
    commit(storage, 7, SHARED, OWNS)
    ahead = Prefetch(storage, 7, (1, 3))

    held = ahead.take(7, (1, 3))

    assert held is not None
    assert {rank: bytes(content) for rank, content in held.items()} == {
        1: Path(storage.place_of(7), "worker_1.pt").read_bytes()
    }
    assert ahead.take(7, (1, 3)) is None
    assert alike(load(storage, 7, Reader(2, 3), held).shared, SHARED)


def test_another_step_or_part_is_not_handed_out(tmp_path: Path) -> None:
    storage = local(tmp_path)
    commit(storage, 7, SHARED, OWNS)
    ahead = Prefetch(storage, 7, (0, 3))

    assert [ahead.take(6, (0, 3)), ahead.take(7, (0, 1))] == [None, None]


@pytest.mark.parametrize("step", [7, 8])
def test_damage_and_absence_are_left_to_who_asks(tmp_path: Path, step: int) -> None:
    storage = local(tmp_path)
    commit(storage, 7, SHARED, OWNS)
    path = Path(storage.place_of(7), "worker_0.pt")
    path.write_bytes(path.read_bytes().replace(b"shared.models.net.b", b"shared.models.net.x"))

    assert Prefetch(storage, step, (0, 3)).take(step, (0, 3)) is None
    with pytest.raises(Damaged):
        hashed(storage, 7, (0, 3))


def test_no_thread_is_left_when_it_has_been_taken(tmp_path: Path) -> None:
    storage = local(tmp_path)
    commit(storage, 7, SHARED, OWNS)
    threads = set(threading.enumerate())

    Prefetch(storage, 7, (0, 1)).take(7, (0, 1))

    assert set(threading.enumerate()) <= threads
