"""Where a Lightning training is in its data, and how a later process gets there.

A Trainer restores its counters, but reads its data from their beginning and with other random
numbers. The order of an epoch follows from the generators when its iterator is created and first
read. So both states are kept: a resumed training creates the same iterator, reads what was read,
and continues with the generators as they were when the checkpoint was saved.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from torchloom.worker.run.rng import generator_states, restore_generators

_UNSKIPPED = "_DataLoaderIterDataFetcher"  # its program reads the data itself


class DataPosition:
    """The random states of a training, as its loops create and read the iterators of its data."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._created: Any = None  # the states when the iterator of this epoch was created
        self._read: Any = None  # and before its first batch was read
        self._is_created = False  # by the loop that begins now
        self._back: Mapping[str, Any] | None = None  # to be restored

    # Saving.

    def state(self) -> dict[str, Any]:
        """Return the position of a checkpoint that is saved now."""
        loop = self._trainer.fit_loop
        epoch = loop.epoch_progress.current
        return {
            "is_between": epoch.processed == epoch.ready,  # two epochs
            "created": self._created,
            "read": self._read,
            "now": self._states(),
        }

    def why_inexact(self) -> str:
        """Return why a checkpoint that is saved now lacks a part of this step, else nothing."""
        loop = self._trainer.fit_loop.epoch_loop
        batch = loop.batch_progress.current
        if batch.completed == batch.processed:
            return ""
        if loop.batch_progress.is_last_batch or _is_validated(loop):
            return "it was saved before the validation after this step, which is not repeated"
        return ""

    # Resuming.

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a checkpoint when the loops begin."""
        self._back = state

    def why_elsewhere(self) -> str:
        """Return why the data cannot be continued where they were, else an empty text."""
        fetcher = self._trainer.fit_loop._data_fetcher
        if type(fetcher).__name__ == _UNSKIPPED:
            return "the program reads its data itself"
        loaders = list(self._loaders())
        stateful = [_is_stateful(loader) for loader in loaders]
        if any(stateful) and not all(stateful):
            return "only some of the data loaders restore their position"
        datasets = [getattr(loader, "dataset", None) for loader in loaders]
        if any(isinstance(one, IterableDataset) for one in datasets) and not all(stateful):
            return "the order of an IterableDataset is its own"
        return ""

    # What the loops call.

    def creates(self, fetcher: Any) -> None:
        """Note the states before an iterator of the training data is created."""
        if fetcher is self._trainer.fit_loop._data_fetcher:
            self._created, self._is_created = self._states(), True

    def begin_epoch(self) -> None:
        """Restore the generators before anything of a new epoch runs."""
        if self._back is not None and self._back["is_between"]:
            self._restore(self._back["now"])

    def begins(self) -> None:
        """Note that the loop over the batches of an epoch begins; it may create the iterator."""
        self._is_created = False

    def has_begun(self, loop: Any, fetcher: Any) -> None:
        """Read what was read before, if the loop continues in an epoch.

        The epoch of a checkpoint between two epochs may be continued, too: with no batch left.
        """
        back, count = self._back, loop.batch_progress.current.ready
        if back is None:
            self._read = self._states()
        elif count or not back["is_between"]:
            self._skip(fetcher, back, count)
            self._restore(back["now"])
            self._back = back if back["is_between"] else None
        else:
            self._back = None
            if not self._is_created:
                iter(fetcher)
            self._read = self._states()

    def _skip(self, fetcher: Any, back: Mapping[str, Any], count: int) -> None:
        """Read so many batches again, unless the loader has restored its position itself."""
        self._created, self._read = back["created"], back["read"]
        if any(map(_is_stateful, self._loaders())) or type(fetcher).__name__ == _UNSKIPPED:
            return
        if self._created is not None and self._read is not None:
            self._restore(self._created)
            iter(fetcher)
            self._created = back["created"]
            self._restore(self._read)
            for _ in range(count):
                if next(fetcher, None) is None:
                    break  # there are fewer now

    # Generators.

    def _states(self) -> dict[str, Any]:
        own = [generator.get_state() for generator in self._generators()]
        return {**generator_states(), "loaders": own}

    def _restore(self, states: Mapping[str, Any]) -> None:
        restore_generators(states)
        for generator, state in zip(self._generators(), states["loaders"], strict=False):
            generator.set_state(state)

    def _generators(self) -> list[Any]:
        """Return the generators that the data loaders have for themselves."""
        found: dict[int, Any] = {}
        for loader in self._loaders():
            for part in (loader, getattr(loader, "sampler", None)):
                generator = getattr(part, "generator", None)
                if hasattr(generator, "get_state"):
                    found[id(generator)] = generator
        return list(found.values())

    def _loaders(self) -> Iterator[Any]:
        combined = self._trainer.fit_loop._combined_loader
        return iter(combined.flattened if combined is not None else ())


def _is_validated(loop: Any) -> bool:
    """Tell whether a validation follows, or may follow, the present batch."""
    trainer = loop.trainer
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return True
    return bool(loop._should_check_val_fx(trainer.fit_loop._data_fetcher))


def _is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
