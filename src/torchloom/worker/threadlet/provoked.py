"""Raise an exception in a step of this rank when its own user asks for one, by a signal.

`loom chaos` does. No step looks for it: a handler lies ready, and the step that it provokes is
dealt in the place of the next one. The kernel lets nobody send a signal but the rank's own user.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from torchloom.worker.threadlet.steps import Step

_OURS = 7  # of the signals that no library has a use for
SIGNAL: int = signal.SIGRTMIN + _OURS if hasattr(signal, "SIGRTMIN") else 0


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
