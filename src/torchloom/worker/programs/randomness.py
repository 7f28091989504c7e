"""Whether a dataset draws random numbers while it is read.

A trainer that skips to its position in the data does not repeat those draws, so the resumed
training gets other data. The first samples of each process that reads data are observed, also in
forked workers of a DataLoader: they share one byte with the rank.
"""

import functools
import mmap
import random
import sys
from typing import Any

_OBSERVED = 8  # fetches of each process
_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")


class DatasetRandomness:
    """Compares the global random generators before and after data is fetched."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1)  # shared with forks
        self._left = _OBSERVED

    @property
    def draws(self) -> bool:
        """Tell whether a fetch has drawn from a global generator."""
        return self._page[0] != 0

    def install(self, module: Any) -> None:
        """Observe the fetchers of `torch.utils.data._utils.fetch`."""
        for name in _FETCHERS:
            fetcher = getattr(module, name)
            fetcher.fetch = self._observed(fetcher.fetch)

    def _observed(self, real: Any) -> Any:
        @functools.wraps(real)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            if not self._left:
                return real(*args, **kwargs)
            self._left -= 1
            before = _states()
            found = real(*args, **kwargs)
            if _states() != before:
                self._page[0] = 1
            return found

        return fetch


def _states() -> list[Any]:
    """Return the states of the generators that a dataset may use."""
    states: list[Any] = [random.getstate()]
    if (torch := sys.modules.get("torch")) is not None:
        states.append(torch.get_rng_state().numpy().tobytes())
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states += [name, keys.tobytes(), *rest]
    return states
