"""Two sockets, each of which hears what the other says, in the selector of whoever joins them."""

import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

_CHUNK = 1 << 16
_MOST_UNSENT = 1 << 20  # bytes that wait for one side before the other is read no further


@dataclass(slots=True)
class _End:
    channel: socket.socket
    unsent: bytearray = field(default_factory=bytearray)
    watched: int = 0  # what the selector looks for


class Splice:
    """Carries bytes both ways until one side hangs up; `on_end` is called once, by that."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        one: socket.socket,
        other: socket.socket,
        on_end: Callable[["Splice"], None],
    ) -> None:
        self._selector = selector
        self._ends = (_End(one), _End(other))
        self._on_end = on_end
        self._open = True
        for end in self._ends:
            end.channel.setblocking(False)
        self._settle()

    def close(self) -> None:
        """Hang up on both."""
        if self._open:
            self._open = False
            for end in self._ends:
                if end.watched:
                    self._selector.unregister(end.channel)
                end.channel.close()

    def _serve(self, end: _End, ready: int) -> None:
        if not self._open:
            return  # the other end hung up in this very moment
        other = self._ends[self._ends[0] is end]
        try:
            if ready & selectors.EVENT_READ:
                self._pass_on(end, other)
            if ready & selectors.EVENT_WRITE:
                self._flush(end)
        except OSError:
            self._end()
        if self._open:
            self._settle()

    def _pass_on(self, end: _End, other: _End) -> None:
        try:
            data = end.channel.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        other.unsent += data
        self._flush(other)

    def _flush(self, end: _End) -> None:
        while end.unsent:
            try:
                sent = end.channel.send(end.unsent)
            except BlockingIOError:
                return
            del end.unsent[:sent]

    def _settle(self) -> None:
        """Look for what can be done: nothing is read for a side that does not take what it has."""
        for end, other in (self._ends, self._ends[::-1]):
            wanted = selectors.EVENT_READ if len(other.unsent) < _MOST_UNSENT else 0
            wanted |= selectors.EVENT_WRITE if end.unsent else 0
            if wanted == end.watched:
                continue
            if end.watched:
                self._selector.unregister(end.channel)
            if wanted:
                self._selector.register(
                    end.channel, wanted, lambda ready, end=end: self._serve(end, ready)
                )
            end.watched = wanted

    def _end(self) -> None:
        self.close()
        self._on_end(self)
