"""Samples: made up, from files, from functions; split, and dealt to ranks."""

import time
from pathlib import Path
from typing import Any

import pytest

from torchloom.specs.exceptions import SpecError

pytestmark = pytest.mark.needs("torch")


def arrays(folder: Path, **given: Any) -> str:
    """Write arrays as numpy does; return where."""
    import numpy

    numpy.savez(folder / "a.npz", **given)
    return str(folder / "a.npz")


def refusal(path: str) -> str:
    """Return why a file of arrays is refused."""
    from torchloom.worker.train.data import npz_samples

    with pytest.raises(SpecError) as caught:
        npz_samples(path)
    assert caught.value.path == "dataset"
    return caught.value.problem


def test_made_up_samples_are_there_at_once_and_the_same_in_any_order() -> None:
    import torch

    from torchloom.worker.train.data import Synthetic, synthetic_samples

    begun = time.process_time()
    samples = synthetic_samples("synthetic", seed=1)
    first, labels = samples.take(torch.arange(64))
    spent = time.process_time() - begun
    again, _ = Synthetic(60_000, seed=1).take(torch.tensor([63, 5]))
    other, _ = Synthetic(60_000, seed=2).take(torch.tensor([63, 5]))

    assert (len(samples), samples.shape, samples.classes) == (60_000, (784,), 10)
    assert (first.shape, first.dtype, labels.dtype) == ((64, 784), torch.float32, torch.int64)
    assert again.equal(first[[63, 5]])
    assert not other.equal(again)
    assert spent < 1.0


def test_made_up_samples_have_ten_kinds_that_can_be_told_apart_but_not_for_nothing() -> None:
    import torch

    from torchloom.worker.train.data import Synthetic

    samples = Synthetic(8_000, seed=0)
    x, y = samples.take(torch.arange(8_000))
    means = torch.stack([x[:4_000][y[:4_000] == kind].mean(0) for kind in range(10)])
    told = torch.cdist(x[4_000:], means).argmin(1)
    right = (told == y[4_000:]).float().mean()

    assert y.bincount().min() > 700
    assert 0.9 < right < 0.999
    assert x.std() == pytest.approx(1.0, abs=0.05)
    assert len(x[:, :8].unique(dim=0)) == 8_000  # no sample comes twice


def test_text_is_cut_into_windows_whose_targets_are_the_next_bytes(tmp_path: Path) -> None:
    import torch

    from torchloom.worker.train.data import text_samples

    path = tmp_path / "t"
    path.write_bytes(bytes(range(23)) + b"\xff")
    samples = text_samples(str(path), context=4)
    x, y = samples.take(torch.tensor([0, 4]))

    assert (len(samples), samples.shape, samples.classes) == (5, (4,), 256)
    assert x.tolist() == [[0, 1, 2, 3], [16, 17, 18, 19]]
    assert y.tolist() == [[1, 2, 3, 4], [17, 18, 19, 20]]


@pytest.mark.parametrize("size", [0, 1, 8])
def test_text_that_is_too_short_is_refused(tmp_path: Path, size: int) -> None:
    from torchloom.worker.train.data import text_samples

    path = tmp_path / "t"
    path.write_bytes(b"x" * size)

    with pytest.raises(SpecError, match="too few for a context of 4: at least 9 are needed"):
        text_samples(str(path), context=4)


def test_arrays_are_samples_and_classes(tmp_path: Path) -> None:
    import numpy
    import torch

    from torchloom.worker.train.data import npz_samples

    pictures = numpy.arange(24, dtype="uint8").reshape(2, 3, 4) * 10
    samples = npz_samples(arrays(tmp_path, x=pictures, y=numpy.array([0, 4], "uint8")))
    x, y = samples.take(torch.tensor([1]))

    assert (len(samples), samples.shape, samples.classes) == (2, (3, 4), 5)
    assert torch.allclose(x, torch.arange(120.0, 240.0, 10.0).view(1, 3, 4) / 255)
    assert y.tolist() == [4]


def test_objects_in_an_array_file_are_never_loaded(tmp_path: Path) -> None:
    import numpy

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "owned",)

    path = arrays(tmp_path, x=numpy.array([Evil(), 1], object), y=numpy.zeros(2, int))

    assert "cannot be read: Object arrays cannot be loaded" in refusal(path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([[1.0], [2.0]], [[0], [1]], "y is int64 (2, 1): give 2 whole numbers"),
        ([[1.0], [2.0]], [0], "y is int64 (1,): give 2 whole numbers"),
        ([[1.0], [2.0]], [0.5, 1.0], "y is float64 (2,): give 2 whole numbers"),
        ([[1.0], [2.0]], [-1, 1], "y goes from -1 to 1: number the classes from 0"),
        ([[1.0], [2.0]], [0, 10**9], "number the classes from 0"),
        ([1.0, 2.0], [0, 1], "x is float64 in 1 dimensions: give numbers"),
        ([["a"], ["b"]], [0, 1], "x is <U1 in 2 dimensions: give numbers"),
        ([[1.0], [float("nan")]], [0, 1], "x has values that are not finite"),
        ([[1.0], [float("inf")]], [0, 1], "x has values that are not finite"),
        ([[1.0]], [0], "has 1 samples: give at least two"),
    ],
)
def test_arrays_that_are_no_samples_are_refused(
    tmp_path: Path, x: list[Any], y: list[Any], words: str
) -> None:
    assert words in refusal(arrays(tmp_path, x=x, y=y))


def test_files_that_numpy_did_not_write_are_refused(tmp_path: Path) -> None:
    import numpy

    one, broken, cut, empty = (tmp_path / name for name in ("one.npy", "broken", "cut", "empty"))
    numpy.save(one, numpy.zeros(3))
    broken.write_bytes(b"\x80\x04\x95 no pickle is read")
    cut.write_bytes(Path(arrays(tmp_path, x=numpy.ones((9, 9)), y=numpy.ones(9))).read_bytes()[:99])
    empty.touch()

    assert "has one array without a name" in refusal(str(one))
    assert all("cannot be read" in refusal(str(path)) for path in (broken, cut, empty))
    assert "has not both arrays x and y" in refusal(arrays(tmp_path, x=numpy.ones((2, 2))))


def test_what_is_held_out_is_never_trained_on_and_nothing_is_lost() -> None:
    from torchloom.worker.train.data import Synthetic, split

    samples = Synthetic(101, seed=0)
    (kept, held), (again, _), (other, _) = (split(samples, 0.25, seed) for seed in (1, 1, 2))

    assert (len(kept), len(held)) == (76, 25)
    assert sorted([*kept.indices.tolist(), *held.indices.tolist()]) == list(range(101))
    assert kept.indices.equal(again.indices)
    assert not kept.indices.equal(other.indices)
    assert [len(part) for part in split(samples, 0.0, 1)] == [101, 0]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_ranks_see_every_sample_in_batches_of_the_same_sizes_in_a_new_order_each_epoch(
    accumulate: int,
) -> None:
    import torch

    from torchloom.worker.train.data import DatasetPart, train_batches
    from torchloom.worker.train.hyperparameters import Hyper

    class Numbers:
        kind, shape, classes = "features", (1,), 2

        def __len__(self) -> int:
            return 50

        def take(self, indices: Any) -> tuple[Any, Any]:
            return indices[:, None].float(), indices

    part = DatasetPart(Numbers(), torch.arange(50))
    hyper = Hyper(batch_size=4, accumulate=accumulate)
    dealt = [train_batches(part, hyper, rank, 3, seed=0) for rank in range(3)]
    sizes, seen, orders = set(), set(), set()
    for each in dealt:
        steps = list(each)
        assert len(steps) == len(each)
        sizes.add(tuple(len(y) for batch in steps for _, y in batch))
        seen.update(int(at) for batch in steps for _, y in batch for at in y)
        for epoch in range(2):
            each.sampler.set_epoch(epoch)
            orders.add(tuple(int(at) for batch in each for _, y in batch for at in y))

    assert seen == set(range(50))
    assert sizes == {(4, 4, 4, 4, 1)}
    assert len(orders) == 6
