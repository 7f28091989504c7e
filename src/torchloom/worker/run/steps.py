"""One step of a training program, a section between steps, and the batches that steps are for."""

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Protocol

_OURS = 7  # of the signals that no library has a use for
SIGNAL: int = signal.SIGRTMIN + _OURS if hasattr(signal, "SIGRTMIN") else 0


Batch = tuple[int | None, Any]  # epoch and batch; no epoch: there is none left
Dealt = Iterator[Batch]
NONE: Batch = (None, None)


def size_of(source: Any, epochs: int) -> int | None:
    """Return how many steps a loop over a source has; nothing where it has no length."""
    try:
        return (source if isinstance(source, int) else len(source)) * epochs
    except TypeError:
        return None


class Holder(Protocol):
    """A run, as seen from its steps."""

    applied: int

    def add(self, step: int, values: dict[str, Any], at: int | None = None, /) -> None: ...

    def hold_back(self, error: BaseException | None) -> bool: ...


class Step:
    """One step of a run; `with step:` says that it is done when the block is left.

    Where the run's members may be replaced, an exception in the block is held back until it is
    known whose it is: the program's own is raised by `run.steps`, behind a peer's the step comes
    again. Until then the program goes on behind the block; `is_done` tells.
    """

    __slots__ = ("_run", "batch", "epoch", "is_done", "number")

    def __init__(self, run: "Holder", number: int, epoch: int, batch: Any) -> None:
        self._run = run
        self.number = number
        self.epoch = epoch
        self.batch = batch
        self.is_done = False

    def log(self, **values: Any) -> None:
        """Note numbers of this step; see `Run.log`."""
        self._run.add(self.number, values)

    def __enter__(self) -> "Step":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if kind is None:
            self.is_done = True
            self._run.applied = self.number + 1
            return False
        return self._run.hold_back(error)


class Section:
    """A part of a program, outside of its steps, in which ranks need each other."""

    __slots__ = ("_run", "is_done", "name")

    def __init__(self, run: "Holder", name: str) -> None:
        self._run = run
        self.name = name
        self.is_done = False

    def __enter__(self) -> "Section":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.is_done = kind is None
        return kind is not None and self._run.hold_back(error)


class Dealing:
    """The batches of a loop, one a step; the last one again for a step that was interrupted."""

    __slots__ = ("_batches", "_last", "_step")

    def __init__(self, batches: Dealt) -> None:
        self._batches = batches
        self._last = NONE
        self._step = -1

    def next(self) -> Batch:
        """Return the next batch, and keep nothing."""
        return next(self._batches, NONE)

    def of(self, step: int) -> Batch:
        """Return the batch of a step, and keep it until the next one's."""
        if step != self._step:
            self._last, self._step = next(self._batches, NONE), step
        return self._last

    def go_to(self, step: int, batches: Dealt | None) -> None:
        """Go on at a step: with other batches, or with what these have left."""
        if batches is not None:
            self._batches, self._step = batches, -1
            return
        for _ in range(self._step + 1, step):
            next(self._batches, None)


class Provoked(RuntimeError):
    """What a program may raise at any time, raised because somebody wanted to see it."""


class ProvokedStep(Step):
    """A step that fails when its block is done."""

    __slots__ = ()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if kind is not None:
            return super().__exit__(kind, error, trace)
        provoked = Provoked(f"step {self.number}: provoked by `loom chaos`")
        if self._run.hold_back(provoked):
            return True
        raise provoked


def listen(provoke: Callable[[], None]) -> None:
    """Have the signal call a function, unless it means something else to the program."""
    if not SIGNAL or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return

    def hear(signum: int, frame: FrameType | None) -> None:
        provoke()

    signal.signal(SIGNAL, hear)
    signal.siginterrupt(SIGNAL, False)  # whatever waits in the kernel goes on waiting
