"""Steps of a training loop, sections between steps, and the batches of a loop."""

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Protocol

_OURS = 7  # of the signals that no library has a use for
SIGNAL: int = signal.SIGRTMIN + _OURS if hasattr(signal, "SIGRTMIN") else 0


Batch = tuple[int | None, Any]  # epoch and batch; epoch None: no batch is left
Dealt = Iterator[Batch]
NONE: Batch = (None, None)


def size_of(source: Any, epochs: int) -> int | None:
    """Return the number of steps of a loop over a source; None if it has no length."""
    try:
        return (source if isinstance(source, int) else len(source)) * epochs
    except TypeError:
        return None


class Holder(Protocol):
    """What a step needs of its run."""

    applied: int

    def add(self, step: int, values: dict[str, Any], at: int | None = None, /) -> None: ...

    def hold_back(self, error: BaseException | None) -> bool: ...


class Step:
    """One step of a run, yielded by `run.steps`. Leaving `with step:` completes the step.

    With live recovery, an exception in the block does not propagate at once: code after the block
    runs first. If a lost peer caused it, `run.steps` yields the step again; otherwise `run.steps`
    raises it. Check `is_done` after the block if the difference matters.

    Attributes:
        number: The number of the step, from 0, over all epochs and restarts.
        epoch: The epoch of its batch.
        batch: The batch of the loader; with `run.steps(1000)`, the number within the epoch.
        is_done: Whether the block was left without an exception.
    """

    __slots__ = ("_run", "batch", "epoch", "is_done", "number")

    def __init__(self, run: "Holder", number: int, epoch: int, batch: Any) -> None:
        self._run = run
        self.number = number
        self.epoch = epoch
        self.batch = batch
        self.is_done = False

    def log(self, **values: Any) -> None:
        """Log metrics of this step, as `Run.log` does: `step.log(loss=loss)`."""
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
    """Collective work between steps; see `Run.section`."""

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
    """The batches of a loop, one per step; an interrupted step gets the same batch again."""

    __slots__ = ("_batches", "_last", "_step")

    def __init__(self, batches: Dealt) -> None:
        self._batches = batches
        self._last = NONE
        self._step = -1

    def next(self) -> Batch:
        """Return the next batch, without keeping it."""
        return next(self._batches, NONE)

    def of(self, step: int) -> Batch:
        """Return the batch of a step, and keep it until the next step."""
        if step != self._step:
            self._last, self._step = next(self._batches, NONE), step
        return self._last

    def go_to(self, step: int, batches: Dealt | None) -> None:
        """Continue at a step, with new batches or with the rest of these."""
        if batches is not None:
            self._batches, self._step = batches, -1
            return
        for _ in range(self._step + 1, step):
            next(self._batches, None)


class Provoked(RuntimeError):
    """An exception that a test of recovery requested."""


class ProvokedStep(Step):
    """A step that raises at the end of its block."""

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
    """Call a function on the signal, unless the program handles that signal itself."""
    if not SIGNAL or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        provoke()

    signal.signal(SIGNAL, handle)
    signal.siginterrupt(SIGNAL, False)  # system calls are restarted
