"""Move what ranks print into their logs as it comes, and on to a terminal that watches."""

import selectors
import time
from collections.abc import Callable
from functools import partial

from torchloom.launch.rank import Rank
from torchloom.launch.terminal import Relay

_LARGEST_PIPE = 1 << 20  # bytes that an output holds at most, unless root had it made larger


class Pump:
    """The outputs of all ranks of an app.

    They are not read while whoever takes them is full: then the pipes are soon, and whoever prints
    waits, as it would for a slow terminal.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_output: Callable[[], None] = lambda: None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._selector = selector
        self.relay: Relay | None = None  # the terminal that watches
        self._on_moved = on_output
        self._takes_no_more = is_full
        self._watched: dict[int, Rank] = {}
        self._held: set[int] = set()  # not read while somebody cannot keep up

    def watch(self, rank: Rank) -> None:
        for fd in rank.outputs:
            self._watched[fd] = rank
            self._selector.register(fd, selectors.EVENT_READ, partial(self._on_output, fd))

    def resume(self) -> None:
        """Read on once whoever could not keep up has caught up."""
        if self._held and not self._is_full():
            for fd in self._held:
                self._selector.register(fd, selectors.EVENT_READ, partial(self._on_output, fd))
            self._held.clear()

    def drain(self, rank: Rank) -> None:
        """Read what is there now; whoever else holds the output open may still add to it."""
        for fd in list(rank.outputs):
            left = _LARGEST_PIPE
            while (moved := self._move(fd)) and left > 0:
                left -= moved
            if moved is None:
                self._end(fd)

    def finish(self, patience: float) -> None:
        """Read all outputs to their end, or until patience runs out, and close them."""
        deadline = time.monotonic() + patience
        for fd, rank in list(self._watched.items()):
            while (moved := self._move(fd)) is not None and time.monotonic() < deadline:
                if moved == 0:
                    time.sleep(0.001)
            self._end(fd)
            rank.log.close()

    def _on_output(self, fd: int, _ready: int) -> None:
        if fd not in self._watched:
            return
        if self._is_full():
            self._held.add(fd)
            self._selector.unregister(fd)
        elif self._move(fd) is None:
            self._end(fd)

    def _move(self, fd: int) -> int | None:
        """Return how many bytes were moved; nothing at all when the output has ended."""
        copy = self.relay.send if self.relay is not None else None
        moved = self._watched[fd].pump(fd, copy)
        if moved:
            self._on_moved()
        return moved

    def _is_full(self) -> bool:
        return self._takes_no_more() or (self.relay is not None and self.relay.full)

    def _end(self, fd: int) -> None:
        rank = self._watched.pop(fd)
        if fd in self._held:
            self._held.discard(fd)
        else:
            self._selector.unregister(fd)
        if self.relay is not None:
            self.relay.detach(fd)
        rank.close(fd)
        if not rank.outputs:
            rank.log.close()
