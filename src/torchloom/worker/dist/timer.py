"""How long something took, the device's share included."""

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
    """Time a block, or every call of a function: `with Timer() as t: ...; t.seconds`.

    An accelerator works behind the program's back: it is waited for before and after.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seconds = 0.0  # of the last block
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
        if kind is None:  # a device in trouble would hide the error behind its own
            synchronize()
        self.seconds = time.perf_counter() - self._began.pop()
        self.total += self.seconds
        self.count += 1

    @property
    def mean(self) -> float:
        """Seconds a block, over all of them."""
        return self.total / self.count if self.count else 0.0


TIMINGS: dict[str, Timer] = {}  # what `timeitlogit` recorded, by name


def timeitlogit(
    rank: int | None = None,
    record: bool = True,
    verbose: bool = False,
    prefix: str | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Time every call of a function; with `verbose`, log it on one rank (0, unless said).

    With `record`, `TIMINGS[name]` has the calls' number, total and mean.
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
