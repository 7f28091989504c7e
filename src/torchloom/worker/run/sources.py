"""The four kinds of batch sources that `run.steps` takes, each with a position to resume at."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torchloom.worker.run.loader import Loader
from torchloom.worker.run.rng import RngSource, mix, seed_generators

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
