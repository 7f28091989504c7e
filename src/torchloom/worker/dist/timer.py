"""Timers that include the work of the accelerator."""

import functools
import logging
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import ParamSpec, TypeVar

from torchloom.worker.dist.device import synchronize
from torchloom.worker.dist.place import get_rank

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Timer(ContextDecorator):
    """Measure a block or, as a decorator, every call of a function.

    An accelerator works asynchronously: it is synchronized before and after.

    Attributes:
        seconds: The duration of the last block.
        total: The duration of all blocks.
        count: The number of blocks.

    Example:
        >>> with Timer() as timer:
        ...     model(batch)
        >>> timer.seconds
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seconds = 0.0
        self.total = 0.0
        self.count = 0
        self._began: list[float] = []  # blocks may be inside one another

    def __enter__(self) -> "Timer":
        synchronize()
        self._began.append(time.perf_counter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # an error of the device would hide this one
            synchronize()
        self.seconds = time.perf_counter() - self._began.pop()
        self.total += self.seconds
        self.count += 1

    @property
    def mean(self) -> float:
        """The mean duration of a block."""
        return self.total / self.count if self.count else 0.0


TIMINGS: dict[str, Timer] = {}  # what `timeitlogit` recorded, by name


def timeitlogit(
    rank: int | None = None,
    record: bool = True,
    verbose: bool = False,
    prefix: str | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that measures every call of a function.

    With `verbose`, each call is logged on one rank (0 by default). With `record`, `TIMINGS[name]`
    has the number, the total and the mean of the calls; `prefix` is put before the name.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = "/".join(word for word in (prefix, function.__qualname__) if word)

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            timer = TIMINGS.setdefault(name, Timer(name)) if record else Timer(name)
            with timer:
                result = function(*args, **kwargs)
            if verbose and get_rank() == (rank or 0):
                log.info("%s took %.6f s", name, timer.seconds)
            return result

        return timed

    return decorate
