"""The batches of a run: its own loader and other sources, each with a position to resume at."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from torchloom.errors import UserError
from torchloom.worker.run.rng import RngSource, mix, seed_generators

Block = tuple[int, int]  # where it begins and ends in the epoch's order


def blocks(total: int, start: int, world: int, size: int, drop_last: bool) -> Iterator[Block]:
    """Yield the samples of all ranks for each step, from a position to the end of the epoch.

    The rest of an epoch is a smaller block. If it has fewer samples than there are ranks, it is
    added to the block before.
    """
    whole = world * size
    while total - start >= whole:
        end = start + whole
        rest = total - end
        if not drop_last and 0 < rest < world:
            end = total
        yield start, end
        start = end
    if start < total and not drop_last:
        yield start, total


def count(total: int, world: int, size: int, drop_last: bool) -> int:
    """Return the number of steps of an epoch."""
    full, rest = divmod(total, world * size)
    if drop_last or (full and rest < world):
        return full
    return full + (rest > 0)


def share(block: Block, rank: int, world: int) -> range:
    """Return a rank's places in a block: consecutive, and as many as other ranks have, or one more.

    A sample is dealt twice only if a run resumes with more ranks than samples are left: every rank
    needs one.
    """
    begin, end = block
    here = end - begin
    if here < world:
        at = begin + rank % here
        return range(at, at + 1)
    return range(begin + here * rank // world, begin + here * (rank + 1) // world)


Key = tuple[int, int, int]  # seed, epoch and index of a sample


class BadData(UserError):
    """The dataset, or an argument of the loader, cannot be used."""

    code = "bad_dataset"


class Deal(Protocol):
    """What the ranks agree on; known once the process group exists."""

    @property
    def seed(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


class Shares:
    """The batch sampler: this rank's samples of each batch, from a position on.

    torch's loader reads ahead from it, in this process. It holds no reference to the loader: a
    loader in a reference cycle would be freed too late to stop its workers in order.
    """

    def __init__(
        self, total: int, deal: Deal, batch_size: int, shuffle: bool, drop_last: bool
    ) -> None:
        self.epoch = 0
        self.dealt = 0  # samples of this epoch that all ranks have received
        self._total = total
        self._deal = deal
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._known: tuple[int, Sequence[int]] = (-1, ())  # the order of one epoch, cached

    def __len__(self) -> int:
        return count(self._total, self._deal.world_size, self._batch_size, self._drop_last)

    def __iter__(self) -> Iterator[list[Key]]:
        deal, seed, epoch = self._deal, self._deal.seed, self.epoch
        order = self._order(seed, epoch)
        for block in self.blocks():
            places = share(block, deal.rank, deal.world_size)
            yield [(seed, epoch, order[place]) for place in places]

    def next(self) -> list[int]:
        """Return the samples of this rank's next batch, even if it is in the next epoch."""
        deal, left = self._deal, self.blocks()
        epoch, dealt = (self.epoch, self.dealt) if left else (self.epoch + 1, 0)
        more = blocks(self._total, dealt, deal.world_size, self._batch_size, self._drop_last)
        if self._known[0] != epoch:
            self._known = (epoch, self._order(deal.seed, epoch))
        places = share(next(more), deal.rank, deal.world_size)
        return [self._known[1][place] for place in places]

    def blocks(self) -> list[tuple[int, int]]:
        """Return the remaining blocks of this epoch."""
        world = self._deal.world_size
        if self._total < world:
            raise BadData(
                f"a dataset of {self._total} samples cannot be divided among {world} ranks:"
                " use fewer ranks"
            )
        return list(blocks(self._total, self.dealt, world, self._batch_size, self._drop_last))

    def _order(self, seed: int, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(self._total)
        generator = torch.Generator().manual_seed(mix("order", seed, epoch))
        order: list[int] = torch.randperm(self._total, generator=generator).tolist()
        return order


class Loader:
    """Batches of a dataset, dealt to all ranks: each sample exactly once per epoch.

    `run.loader` creates it. `batch_size` counts the samples of one rank; the last batches of an
    epoch divide what is left. Random numbers that a sample draws (`torch`, `numpy.random`,
    `random`) depend on (seed, epoch, index) only, not on the process that reads it.
    """

    def __init__(
        self,
        dataset: Any,
        deal: Deal,
        batch_size: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        **more: Any,
    ) -> None:
        _check(dataset, batch_size, more)
        self.dataset = dataset
        self.batch_size = batch_size
        self._is_epoch_done = False
        self._shares = Shares(len(dataset), deal, batch_size, shuffle, drop_last)
        generator = torch.Generator().manual_seed(0)  # for the workers; each sample is seeded
        self._loader = DataLoader(
            _Seeded(dataset), batch_sampler=self._shares, generator=generator, **more
        )

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one between two epochs."""
        return self._shares.epoch

    @property
    def is_epoch_done(self) -> bool:
        """Whether the last batch that was dealt was the last one of its epoch."""
        return self._is_epoch_done

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self._shares)

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of this epoch; the next call begins the next epoch."""
        shares = self._shares
        ends = [end for _, end in shares.blocks()]
        batches = iter(self._loader)
        for end in ends:
            batch = next(batches)
            shares.dealt, self._is_epoch_done = end, end == ends[-1]
            yield batch
        shares.epoch, shares.dealt = shares.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position: the epoch, and the samples dealt in it."""
        return {"epoch": self._shares.epoch, "dealt": self._shares.dealt}

    def samples(self) -> list[int]:
        """Return the indices of the samples of this rank's next batch."""
        return self._shares.next()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position, without reading the samples before it."""
        self._shares.epoch, self._shares.dealt = int(state["epoch"]), int(state["dealt"])


class _Seeded(Dataset[Any]):
    """The dataset, with the generators seeded for each sample."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._batch: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> Any:
        if get_worker_info() is not None:
            return self._take(keys)
        rng = RngSource()
        try:
            return self._take(keys)
        finally:
            rng.put_back()

    def _take(self, keys: list[Key]) -> Any:
        if self._batch is not None:  # it returns a whole batch, drawn from one seed
            seed_generators(mix("sample", *keys[0]))
            return self._batch([index for _, _, index in keys])
        return [self._one(*key) for key in keys]

    def _one(self, seed: int, epoch: int, index: int) -> Any:
        seed_generators(mix("sample", seed, epoch, index))
        return self._dataset[index]


def _check(dataset: Any, batch_size: int, more: dict[str, Any]) -> None:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise BadData(
            "run.loader takes a dataset with a length and samples by number; put any other into a"
            " torch DataLoader and give that to run.steps"
        )
    if batch_size < 1:
        raise BadData(f"batch_size must be at least 1, not {batch_size}")
    for name in ("sampler", "batch_sampler", "generator"):
        if name in more:
            raise BadData(f"run.loader divides the samples itself: leave {name} out")


Dealt = Iterator[tuple[int, Any]]  # epoch and batch
Position = dict[str, Any]


class BatchSource(Protocol):
    """Batches over some epochs.

    A source that `can_seek` reaches a position without reading the batches before it.
    """

    @property
    def can_seek(self) -> bool: ...

    def deal(self) -> Dealt:
        """Yield the remaining batches, from the position on."""

    def extend(self) -> None:
        """Add an epoch at the end."""

    def position(self) -> Position:
        """Return the position of the next batch."""

    def restore(self, position: Position, before: int, now: int) -> str:
        """Continue at a position of `before` ranks; return why later batches differ, if so."""


class Counted:
    """A number of steps; the program reads its own data."""

    can_seek = True

    def __init__(self, steps: int, first: int, epochs: int) -> None:
        self._steps = steps
        self._first = first
        self._epochs = epochs
        self._done = 0

    def deal(self) -> Dealt:
        while self._done < self._steps * self._epochs:
            epoch, number = divmod(self._done, self._steps)
            self._done += 1
            yield self._first + epoch, number

    def extend(self) -> None:
        self._epochs = max(self._epochs, self._done // max(1, self._steps)) + 1

    def position(self) -> Position:
        return {"epoch": self._first + self._done // max(1, self._steps), "done": self._done}

    def restore(self, position: Position, before: int, now: int) -> str:
        self._done = int(position.get("done", 0))
        return "the program reads its own data"


class Owned:
    """The loader of `run.loader`."""

    can_seek = True

    def __init__(self, loader: Loader, first: int, epochs: int) -> None:
        self._loader = loader
        self._last = first + epochs
        if loader.epoch < first:
            loader.load_state_dict({"epoch": first, "dealt": 0})

    def deal(self) -> Dealt:
        while self._loader.epoch < self._last:
            epoch = self._loader.epoch
            for batch in self._loader:
                yield epoch, batch

    def extend(self) -> None:
        self._last = max(self._last, self._loader.epoch) + 1

    def position(self) -> Position:
        return self._loader.state_dict()

    def restore(self, position: Position, before: int, now: int) -> str:
        self._loader.load_state_dict(position)
        return ""

    def samples(self) -> list[int]:
        """Return the indices of the samples of this rank's next batch."""
        return self._loader.samples()


class Stateful:
    """A loader with `state_dict` and `load_state_dict`."""

    can_seek = True

    def __init__(self, loader: Any, first: int, epochs: int) -> None:
        self._loader = loader
        self._epoch = first
        self._last = first + epochs

    def deal(self) -> Dealt:
        while self._epoch < self._last:
            for batch in self._loader:
                yield self._epoch, batch
            self._epoch += 1

    def extend(self) -> None:
        self._last = max(self._last, self._epoch) + 1

    def position(self) -> Position:
        return {"epoch": self._epoch, "state": self._loader.state_dict()}

    def restore(self, position: Position, before: int, now: int) -> str:
        self._epoch = int(position["epoch"])
        self._loader.load_state_dict(position["state"])
        return "" if before == now else "the loader's position is of another number of ranks"


class Stock:
    """Any other loader: each epoch is seeded, and batches before the position are skipped."""

    def __init__(self, loader: Iterable[Any], first: int, epochs: int, seed: int) -> None:
        self._loader = loader
        self._epoch = first
        self._last = first + epochs
        self._seed = seed
        self._dealt = 0  # batches of this epoch

    @property
    def can_seek(self) -> bool:
        return hasattr(self._loader, "begin_at")

    def deal(self) -> Dealt:
        while self._epoch < self._last:
            for batch in self._batches():
                self._dealt += 1
                yield self._epoch, batch
            self._epoch, self._dealt = self._epoch + 1, 0

    def extend(self) -> None:
        self._last = max(self._last, self._epoch) + 1

    def position(self) -> Position:
        return {"epoch": self._epoch, "dealt": self._dealt}

    def restore(self, position: Position, before: int, now: int) -> str:
        self._epoch, self._dealt = int(position["epoch"]), int(position["dealt"])
        if before != now:
            self._dealt = self._dealt * before // now  # approximate; some samples may be repeated
            return "the loader cannot divide the rest of its epoch among another number of ranks"
        if self._epoch and getattr(self._loader, "persistent_workers", False):
            return "the RNG state of the loader's persistent workers is not known"
        return ""

    def _batches(self) -> Iterator[Any]:
        """Begin an epoch with seeded generators; skip the batches before the position."""
        rng = RngSource()
        self._begin_epoch()
        batches = self._begun()
        first = list(_some(batches, int(not self._dealt)))  # samplers draw at the first batch
        rng.put_back()
        yield from first
        yield from batches

    def _begun(self) -> Iterator[Any]:
        begin_at = getattr(self._loader, "begin_at", None)
        if begin_at is not None:
            rest: Iterator[Any] = begin_at(self._dealt)
            return rest
        batches = iter(self._loader)
        for _ in _some(batches, self._dealt):
            pass
        return batches

    def _begin_epoch(self) -> None:
        seed = mix("epoch", self._seed, self._epoch)
        seed_generators(seed)
        for one in (self._loader, *_samplers(self._loader)):
            generator: Any = getattr(one, "generator", None)
            if hasattr(generator, "manual_seed"):
                generator.manual_seed(seed)
            if hasattr(one, "set_epoch"):
                one.set_epoch(self._epoch)


def deal(source: BatchSource, is_extended: Callable[[], bool]) -> Dealt:
    """Yield the rest of a source, and further epochs while `is_extended()`."""
    yield from source.deal()
    while is_extended():
        source.extend()
        is_empty = True
        for dealt in source.deal():
            is_empty = False
            yield dealt
        if is_empty:
            return  # an iterator that can be read only once


def _samplers(loader: Any) -> Iterator[Any]:
    """Yield the samplers that may draw the order of a torch loader."""
    for name in ("sampler", "batch_sampler"):
        sampler: Any = getattr(loader, name, None)
        if sampler is not None:
            yield sampler
            inner: Any = getattr(sampler, "sampler", None)
            if inner is not None:
                yield inner


def _some(batches: Iterator[Any], most: int) -> Iterator[Any]:
    for _, batch in zip(range(most), batches, strict=False):
        yield batch


def open_source(source: Any, first: int, epochs: int, order_seed: int) -> BatchSource:
    """Return the argument of `run.steps` as a source with a position."""
    if isinstance(source, int):
        return Counted(source, first, epochs)
    if isinstance(source, Loader):
        return Owned(source, first, epochs)
    if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        return Stateful(source, first, epochs)
    return Stock(source, first, epochs, order_seed)
