"""Data for training: samples by name, a part held out, and batches dealt to the ranks."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, default_collate

from torchloom.specs.exceptions import SpecError
from torchloom.specs.jobspec import JobSpec
from torchloom.worker.dist import get_torch_device
from torchloom.worker.train.files import npz_samples, text_samples
from torchloom.worker.train.hyper import Hyper
from torchloom.worker.train.named import own_function
from torchloom.worker.train.synthetic import synthetic_samples

Pair = tuple[Tensor, Tensor]  # samples, and what is to be said of them
Batch = list[Pair]  # what one step takes: as many pairs as are accumulated


class Samples(Protocol):
    """Samples that can be taken in any order, always the same ones."""

    kind: str  # features, or tokens
    shape: tuple[int, ...]  # of one sample
    classes: int  # 0: not known

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Pair:
        """Return these samples."""


def open_samples(spec: JobSpec, hyper: Hyper, seed: int) -> Samples:
    """Return a job's data, or say why there is none."""
    kind, _, rest = spec.dataset.partition(":")
    match kind:
        case "text":
            return text_samples(rest, hyper.context)
        case "npz":
            return npz_samples(rest)
        case "synthetic":
            return synthetic_samples(spec.dataset, seed)
    return Given.by(spec.dataset, spec.hyperparameters)


class Given:
    """A dataset of the user's own."""

    def __init__(self, dataset: Any, classes: int) -> None:
        first = dataset[0][0]
        self._dataset = dataset
        is_whole = isinstance(first, Tensor) and not first.is_floating_point()
        self.kind = "tokens" if is_whole else "features"
        self.shape = tuple(getattr(first, "shape", ()))
        self.classes = classes

    @classmethod
    def by(cls, name: str, hyperparameters: Mapping[str, Any]) -> "Given":
        """Ask a function for it."""
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
        """Return these samples, put together as torch does it."""
        samples, targets = default_collate([self._dataset[at] for at in indices.tolist()])
        return samples, targets


class Part(Dataset[Pair]):
    """Some of the samples, as a loader of torch takes them: a batch at a time."""

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


def split(samples: Samples, fraction: float, seed: int) -> tuple[Part, Part]:
    """Return what to train on and what to evaluate on; the same on every rank."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    held_out = min(int(len(samples) * fraction), len(samples) - 1)
    return Part(samples, order[held_out:]), Part(samples, order[:held_out])


class Onward(Sampler[int]):
    """A sampler of torch's whose next epoch may begin further on."""

    def __init__(self, inner: "DistributedSampler[Pair]") -> None:
        self.inner = inner
        self.start = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        dealt: Iterator[Any] = iter(self.inner)  # numbers, whatever its type says
        return itertools.islice(dealt, start, None)

    def set_epoch(self, epoch: int) -> None:
        """Deal in another order from now on."""
        self.inner.set_epoch(epoch)


class Batches:
    """What a rank trains on, in each epoch in another order: one batch a step."""

    def __init__(self, loader: "DataLoader[Pair]", sampler: Onward, accumulate: int) -> None:
        self.loader = loader
        self.sampler = sampler  # who deals the samples, and is told of each epoch
        self.accumulate = accumulate
        self._dealt = 0  # in this epoch

    @property
    def generator(self) -> Any:
        """Return what the processes that read data are seeded from."""
        return self.loader.generator

    @property
    def is_at_end(self) -> bool:
        """Tell whether the last batch of an epoch has been handed out."""
        return self._dealt == len(self)

    def __len__(self) -> int:
        return -(-len(self.loader) // self.accumulate)

    def __iter__(self) -> Iterator[Batch]:
        return self.begin_at(0)

    def begin_at(self, count: int) -> Iterator[Batch]:
        """Go through an epoch from its batch `count` on; those before are not read."""
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


def train_batches(part: Part, hyper: Hyper, rank: int, world_size: int, seed: int) -> Batches:
    """Return a rank's share of the data; all ranks have as many batches of the same sizes."""
    sampler: DistributedSampler[Pair] = DistributedSampler(
        part, num_replicas=world_size, rank=rank, shuffle=True, seed=seed
    )
    onward = Onward(sampler)
    return Batches(_loader(part, hyper, seed, sampler=onward), onward, hyper.accumulate)


def eval_batches(
    part: Part, hyper: Hyper, rank: int, world_size: int, seed: int
) -> "DataLoader[Pair]":
    """Return a rank's share of what is held out: every sample is some rank's, and once."""
    share = Part(part.samples, part.indices[rank::world_size])
    return _loader(share, hyper, seed)


def _loader(part: Part, hyper: Hyper, seed: int, **more: Any) -> "DataLoader[Pair]":
    return DataLoader(
        part,
        batch_size=hyper.batch_size,
        num_workers=hyper.loader_workers,
        collate_fn=_whole,
        pin_memory=get_torch_device().type == "cuda",
        generator=torch.Generator().manual_seed(seed),  # draws nothing from the model's own
        **more,
    )


def _whole(batch: Any) -> Any:
    return batch
