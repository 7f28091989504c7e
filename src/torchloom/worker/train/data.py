"""Training data: samples by name, a held-out part, and batches for each rank."""

import itertools
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, default_collate

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.dist import get_torch_device
from torchloom.worker.train.hyperparameters import Hyper, own_function

SAMPLES = 60_000
MOST = 10_000_000
CLASSES = 10
SIDE = 28
SIZE = SIDE * SIDE
_STRIP = (1 << 20) + SIZE
_COARSE = 7  # points on a side of a picture before it is enlarged
_CONTRAST = 0.15  # of a picture, against noise of 1
_STRIDES = (0x9E3779B1, 0x85EBCA77)  # odd, so that places are far apart
BYTES = 256
MOST_CLASSES = 1_000_000
_ARRAYS = "numpy.savez(file, x=samples, y=classes) writes one"


class Synthetic:
    """Samples that are generated on access, from seed and index."""

    kind = "features"
    shape: tuple[int, ...] = (SIZE,)
    classes = CLASSES

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(CLASSES, 1, _COARSE, _COARSE, generator=generator)
        large = torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear").flatten(1)
        self._pictures = _CONTRAST * large / large.std(dim=1, keepdim=True)
        self._noise = torch.randn(_STRIP, generator=generator).unfold(0, SIZE, 1)  # a view, no copy
        self._labels = torch.randint(CLASSES, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these samples and their classes."""
        labels = self._labels[indices]
        here, there = (indices * stride % len(self._noise) for stride in _STRIDES)
        noise = (self._noise[here] + self._noise[there]) * 0.5**0.5
        return self._pictures[labels] + noise, labels


def synthetic_samples(name: str, seed: int) -> Synthetic:
    """Return the samples of `synthetic` or `synthetic:N`."""
    _, colon, number = name.partition(":")
    if not colon:
        return Synthetic(SAMPLES, seed)
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and 1 < int(number) <= MOST):
        problem = f"write a number of samples from 2 to {MOST}, as in synthetic:5000"
        raise SpecError("dataset", f"{shorten(name)!r}: {problem}")
    return Synthetic(int(number), seed)


class Text:
    """Windows of a file's bytes; each byte's target is the next one."""

    kind = "tokens"
    classes = BYTES

    def __init__(self, path: Path, context: int) -> None:
        size = path.stat().st_size
        count = (size - 1) // context
        if count < 2:
            least = 2 * context + 1
            problem = f"{_shown(path)} has {size} bytes, too few for a context of {context}"
            raise SpecError("dataset", f"{problem}: at least {least} are needed")
        whole = torch.from_file(str(path), size=size, dtype=torch.uint8)  # mapped, not read
        self._windows = whole.unfold(0, context + 1, context)
        self.shape: tuple[int, ...] = (context,)

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these windows, and the same one byte later."""
        windows = self._windows[indices].long()
        return windows[:, :-1], windows[:, 1:]


class Arrays:
    """Samples and classes in memory."""

    kind = "features"

    def __init__(self, samples: Tensor, targets: Tensor) -> None:
        self._samples = samples
        self._targets = targets
        self.shape = tuple(samples.shape[1:])
        self.classes = int(targets.max()) + 1

    def __len__(self) -> int:
        return len(self._targets)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these samples and their classes."""
        return self._samples[indices], self._targets[indices]


def text_samples(name: str, context: int) -> Text:
    """Return the windows of a text file."""
    return Text(_file(name), context)


def npz_samples(name: str) -> Arrays:
    """Return the arrays `x` and `y` of an .npz file; pickled objects are never loaded."""
    import numpy

    path = _file(name)
    try:
        found = numpy.load(path, allow_pickle=False)
        if isinstance(found, numpy.ndarray):
            raise _wrong(path, "has one array without a name", _ARRAYS)
        with found:
            x, y = found["x"], found["y"]
    except KeyError as error:
        raise _wrong(path, "has not both arrays x and y", _ARRAYS) from error
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise _wrong(path, f"cannot be read: {shorten(str(error))}", _ARRAYS) from error
    _check_arrays(path, x, y)
    samples = torch.from_numpy(x.astype("float32"))
    if x.dtype == numpy.uint8:  # brightness
        samples /= 255
    return Arrays(samples, torch.from_numpy(y.astype("int64")))


def _check_arrays(path: Path, x: Any, y: Any) -> None:
    if x.dtype.kind not in "fiu" or x.ndim < 2:
        is_now = f"is {x.dtype} in {x.ndim} dimensions"
        raise _wrong(path, f"x {is_now}", "give numbers, one row or picture a sample")
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise _wrong(path, f"y is {y.dtype} {y.shape}", f"give {len(x)} whole numbers")
    if len(x) < 2:
        raise _wrong(path, f"has {len(x)} samples", "give at least two")
    if x.dtype.kind == "f" and not bool(abs(x).max() < 1e30):
        raise _wrong(path, "x has values that are not finite, or nearly so", "clean them first")
    if not 0 <= int(y.min()) <= int(y.max()) < MOST_CLASSES:
        raise _wrong(path, f"y goes from {y.min()} to {y.max()}", "number the classes from 0")


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    try:
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, ValueError):  # not a valid file name
        exists = False
    if exists:
        raise SpecError("dataset", f"{_shown(path)} is not a file")
    problem = "give a path that every worker can see, from its working folder on"
    raise SpecError("dataset", f"no file {_shown(path)}: {problem}")


def _wrong(path: Path, problem: str, remedy: str) -> SpecError:
    return SpecError("dataset", f"{_shown(path)} {problem}: {remedy}")


def _shown(path: Path) -> str:
    return repr(shorten(str(path), 200))


Pair = tuple[Tensor, Tensor]  # samples and targets
Batch = list[Pair]  # the pairs of one step: as many as are accumulated


class Samples(Protocol):
    """Samples with random access; each index always gives the same sample."""

    kind: str  # features, or tokens
    shape: tuple[int, ...]  # of one sample
    classes: int  # 0: not known

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Pair:
        """Return these samples."""


def open_samples(spec: JobSpec, hyper: Hyper, seed: int) -> Samples:
    """Return a job's data; raise SpecError if there is none."""
    kind, _, rest = spec.dataset.partition(":")
    match kind:
        case "text":
            return text_samples(rest, hyper.context)
        case "npz":
            return npz_samples(rest)
        case "synthetic":
            return synthetic_samples(spec.dataset, seed)
    return UserDataset.by(spec.dataset, spec.hyperparameters)


class UserDataset:
    """A dataset that a function of the user returns."""

    def __init__(self, dataset: Any, classes: int) -> None:
        first = dataset[0][0]
        self._dataset = dataset
        is_whole = isinstance(first, Tensor) and not first.is_floating_point()
        self.kind = "tokens" if is_whole else "features"
        self.shape = tuple(getattr(first, "shape", ()))
        self.classes = classes

    @classmethod
    def by(cls, name: str, hyperparameters: Mapping[str, Any]) -> "UserDataset":
        """Call the function that `module:package.function` names."""
        dataset = own_function("dataset", name)(dict(hyperparameters))
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            what = "give a dataset with a length and pairs (sample, target) by number"
            raise SpecError("dataset", f"{name} returned {type(dataset).__name__}: {what}")
        if not len(dataset):
            raise SpecError("dataset", f"{name} returned no samples")
        if not isinstance(dataset[0], tuple | list) or len(dataset[0]) != 2:
            found = type(dataset[0]).__name__
            problem = f"the first sample of {name} is a {found}"
            raise SpecError("dataset", f"{problem}: give pairs (sample, target)")
        classes = getattr(dataset, "classes", 0)  # a number, or the names
        return cls(dataset, classes if isinstance(classes, int) else len(classes))

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: Tensor) -> Pair:
        """Return these samples, collated as torch does."""
        samples, targets = default_collate([self._dataset[at] for at in indices.tolist()])
        return samples, targets


class DatasetPart(Dataset[Pair]):
    """A part of the samples, for torch's DataLoader; it reads whole batches."""

    def __init__(self, samples: Samples, indices: Tensor) -> None:
        self.samples = samples
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, at: int) -> Pair:
        samples, targets = self.samples.take(self.indices[[at]])
        return samples[0], targets[0]

    def __getitems__(self, at: list[int]) -> Pair:
        return self.samples.take(self.indices[at])

    def one(self) -> Pair:
        """Return a sample, whichever; also if there is none in this part."""
        return self.samples.take(torch.zeros(1, dtype=torch.int64))


def split(samples: Samples, fraction: float, seed: int) -> tuple[DatasetPart, DatasetPart]:
    """Return the training part and the held-out part, equal on every rank."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    held_out = min(int(len(samples) * fraction), len(samples) - 1)
    return DatasetPart(samples, order[held_out:]), DatasetPart(samples, order[:held_out])


class Onward(Sampler[int]):
    """A DistributedSampler whose next epoch may begin at a later sample."""

    def __init__(self, inner: "DistributedSampler[Pair]") -> None:
        self.inner = inner
        self.start = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        dealt: Iterator[Any] = iter(self.inner)  # indices, whatever its type annotation is
        return itertools.islice(dealt, start, None)

    def set_epoch(self, epoch: int) -> None:
        """Use the order of another epoch."""
        self.inner.set_epoch(epoch)


class Batches:
    """The batches of a rank, one per step, in another order in each epoch."""

    def __init__(self, loader: "DataLoader[Pair]", sampler: Onward, accumulate: int) -> None:
        self.loader = loader
        self.sampler = sampler  # `run.steps` sets its epoch
        self.accumulate = accumulate
        self._dealt = 0  # in this epoch

    @property
    def generator(self) -> Any:
        """The generator that seeds the loader's worker processes."""
        return self.loader.generator

    @property
    def is_at_end(self) -> bool:
        """Tell whether the last batch of the epoch was returned."""
        return self._dealt == len(self)

    def __len__(self) -> int:
        return -(-len(self.loader) // self.accumulate)

    def __iter__(self) -> Iterator[Batch]:
        return self.begin_at(0)

    def begin_at(self, count: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from batch `count` on, without reading those before."""
        self._dealt = count
        self.sampler.start = count * self.accumulate * (self.loader.batch_size or 1)
        batch: Batch = []
        for pair in self.loader:
            batch.append(pair)
            if len(batch) == self.accumulate:
                self._dealt += 1
                yield batch
                batch = []
        if batch:
            self._dealt += 1
            yield batch


def train_batches(
    part: DatasetPart, hyper: Hyper, rank: int, world_size: int, seed: int, drop_last: bool = False
) -> Batches:
    """Return a rank's share of the data; all ranks have equally many batches of equal sizes."""
    sampler: DistributedSampler[Pair] = DistributedSampler(
        part, num_replicas=world_size, rank=rank, shuffle=True, seed=seed
    )
    onward = Onward(sampler)
    loader = _loader(part, hyper, seed, sampler=onward, drop_last=drop_last)
    return Batches(loader, onward, hyper.accumulate)


def eval_batches(
    part: DatasetPart, hyper: Hyper, rank: int, world_size: int, seed: int
) -> "DataLoader[Pair]":
    """Return a rank's share of the held-out part: each sample is on exactly one rank."""
    share = DatasetPart(part.samples, part.indices[rank::world_size])
    return _loader(share, hyper, seed)


def _loader(part: DatasetPart, hyper: Hyper, seed: int, **more: Any) -> "DataLoader[Pair]":
    return DataLoader(
        part,
        batch_size=hyper.batch_size,
        num_workers=hyper.loader_workers,
        collate_fn=_whole,
        pin_memory=get_torch_device().type == "cuda",
        generator=torch.Generator().manual_seed(seed),  # independent of the default generator
        **more,
    )


def _whole(batch: Any) -> Any:
    return batch
