"""The run's own loader: torch's DataLoader over an order that a position is enough to go on in."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from torchloom.errors import UserError
from torchloom.worker.run.rng import RngSource, mix, seed_generators

Block = tuple[int, int]  # where it begins and ends in the epoch's order


def blocks(total: int, start: int, world: int, size: int, drop_last: bool) -> Iterator[Block]:
    """Yield what all ranks take together in each step, from a position to the epoch's end.

    What is left at the end is dealt as a smaller block; if it is too little for every rank to have
    some, it is added to the block before.
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
    """Return how many steps an epoch has."""
    full, rest = divmod(total, world * size)
    if drop_last or (full and rest < world):
        return full
    return full + (rest > 0)


def share(block: Block, rank: int, world: int) -> range:
    """Return a rank's places in a block: consecutive ones, as many as anybody else's or one more.

    Only if a run goes on with more ranks than samples are left does a rank get one that another
    has too, since each must have some.
    """
    begin, end = block
    here = end - begin
    if here < world:
        at = begin + rank % here
        return range(at, at + 1)
    return range(begin + here * rank // world, begin + here * (rank + 1) // world)


Key = tuple[int, int, int]  # seed, epoch and index of a sample


class BadData(UserError):
    """A dataset that cannot be dealt."""

    code = "bad_dataset"


class Deal(Protocol):
    """Who deals: what all ranks agree on, known once they have met."""

    @property
    def seed(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


class Shares:
    """This rank's share of each batch of an epoch, from a position on.

    Torch's loader asks for it ahead of time, in this process. It refers to no loader: one in a
    circle would be freed too late to end its workers in order.
    """

    def __init__(
        self, total: int, deal: Deal, batch_size: int, shuffle: bool, drop_last: bool
    ) -> None:
        self.epoch = 0
        self.dealt = 0  # samples of this epoch that have been handed out, to all ranks
        self._total = total
        self._deal = deal
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._known: tuple[int, Sequence[int]] = (-1, ())  # an epoch's order, once asked for

    def __len__(self) -> int:
        return count(self._total, self._deal.world_size, self._batch_size, self._drop_last)

    def __iter__(self) -> Iterator[list[Key]]:
        deal, seed, epoch = self._deal, self._deal.seed, self.epoch
        order = self._order(seed, epoch)
        for block in self.blocks():
            places = share(block, deal.rank, deal.world_size)
            yield [(seed, epoch, order[place]) for place in places]

    def next(self) -> list[int]:
        """Return the samples of this rank's next batch, which may be the next epoch's first."""
        deal, left = self._deal, self.blocks()
        epoch, dealt = (self.epoch, self.dealt) if left else (self.epoch + 1, 0)
        more = blocks(self._total, dealt, deal.world_size, self._batch_size, self._drop_last)
        if self._known[0] != epoch:
            self._known = (epoch, self._order(deal.seed, epoch))
        places = share(next(more), deal.rank, deal.world_size)
        return [self._known[1][place] for place in places]

    def blocks(self) -> list[tuple[int, int]]:
        """Return what is still to be dealt of this epoch."""
        world = self._deal.world_size
        if self._total < world:
            raise BadData(
                f"a dataset of {self._total} samples cannot be dealt to {world} ranks:"
                " take fewer ranks"
            )
        return list(blocks(self._total, self.dealt, world, self._batch_size, self._drop_last))

    def _order(self, seed: int, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(self._total)
        generator = torch.Generator().manual_seed(mix("order", seed, epoch))
        order: list[int] = torch.randperm(self._total, generator=generator).tolist()
        return order


class Loader:
    """Batches of a dataset, dealt to all ranks; each sample of an epoch comes exactly once.

    `batch_size` is a rank's. The last batches of an epoch share what is left. What a sample draws
    (`torch`, `numpy.random`, `random`) follows from (seed, epoch, index), in whichever process.
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
        self._shares = Shares(len(dataset), deal, batch_size, shuffle, drop_last)
        generator = torch.Generator().manual_seed(0)  # what workers begin with; samples are seeded
        self._loader = DataLoader(
            _Seeded(dataset), batch_sampler=self._shares, generator=generator, **more
        )

    @property
    def epoch(self) -> int:
        """Return which epoch is under way, or comes next."""
        return self._shares.epoch

    def __len__(self) -> int:
        """Return the steps of a whole epoch."""
        return len(self._shares)

    def __iter__(self) -> Iterator[Any]:
        """Go on where this epoch is, to its end; the next call begins the next one."""
        shares = self._shares
        ends = [end for _, end in shares.blocks()]
        batches = iter(self._loader)
        for end in ends:
            batch = next(batches)
            shares.dealt = end
            yield batch
        shares.epoch, shares.dealt = shares.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"epoch": self._shares.epoch, "dealt": self._shares.dealt}

    def samples(self) -> list[int]:
        """Return the numbers of the samples of this rank's next batch."""
        return self._shares.next()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a position; nothing is read for it."""
        self._shares.epoch, self._shares.dealt = int(state["epoch"]), int(state["dealt"])


class _Seeded(Dataset[Any]):
    """The dataset with each sample drawn from its own seed, in a worker's process or in ours."""

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
        if self._batch is not None:  # it makes a whole batch: all of it from one seed
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
            raise BadData(f"run.loader deals the samples itself: leave {name} out")
