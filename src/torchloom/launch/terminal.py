"""Lend a terminal to a rank: the agent's end keeps the rank's, the command's end the user's.

The rank has a terminal of its own, so it outlives the command that started it; while the command
is there, keys and window sizes go one way and output the other.
"""

import contextlib
import fcntl
import os
import select
import selectors
import signal
import socket
import struct
import termios
import tty
from collections.abc import Iterator

_INPUT, _SIZE = b"i", b"s"
_HEADER = struct.Struct("!cH")
_CHUNK = 1 << 14
_HIGH_WATER = 1 << 18  # bytes waiting for the user's terminal before the rank must wait too


class Relay:
    """The agent's end. It waits for a slow terminal as the rank itself would, and for a dead one
    not at all."""

    def __init__(self, channel: socket.socket, selector: selectors.BaseSelector) -> None:
        self._channel = channel
        self._selector = selector
        self._waiting = b""
        self._received = b""
        self._open = True
        self.terminal: int | None = None
        channel.setblocking(False)
        selector.register(channel, selectors.EVENT_READ, self._serve)

    @property
    def full(self) -> bool:
        return len(self._waiting) > _HIGH_WATER

    def send(self, data: bytes) -> None:
        """Pass on what the rank printed."""
        if self._open:
            self._waiting += data
            self._flush()

    def close(self) -> None:
        """Give the user's end what is left and hang up."""
        with contextlib.suppress(OSError):
            self._channel.setblocking(True)
            self._channel.settimeout(1.0)
            self._channel.sendall(self._waiting)
        self._hang_up()

    def _serve(self, ready: int) -> None:
        if ready & selectors.EVENT_WRITE:
            self._flush()
        if ready & selectors.EVENT_READ and self._open:
            self._receive()

    def _flush(self) -> None:
        try:
            while self._waiting:
                self._waiting = self._waiting[self._channel.send(self._waiting) :]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up()
        if self._open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
            self._selector.modify(self._channel, wanted, self._serve)

    def _receive(self) -> None:
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        self._received += data
        while frame := self._next_frame():
            self._obey(*frame)

    def _next_frame(self) -> tuple[bytes, bytes] | None:
        if len(self._received) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._received)
        end = _HEADER.size + length
        if len(self._received) < end:
            return None
        payload, self._received = self._received[_HEADER.size : end], self._received[end:]
        return kind, payload

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if self.terminal is None:
            return
        with contextlib.suppress(OSError):
            if kind == _INPUT:
                os.write(self.terminal, payload)
            elif kind == _SIZE:
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, payload)

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            self._waiting = b""
            self._selector.unregister(self._channel)
            self._channel.close()


def show(channel: socket.socket, keys: int, screen: int) -> None:
    """The command's end: connect the user's terminal until the rank has ended."""
    resized, wake = os.pipe()
    os.set_blocking(wake, False)
    previous = signal.signal(signal.SIGWINCH, lambda *_: os.write(wake, b"."))
    try:
        with _raw(keys):
            _send_size(channel, screen)
            _relay(channel, keys, screen, resized)
    finally:
        signal.signal(signal.SIGWINCH, previous)
        os.close(resized)
        os.close(wake)


def _relay(channel: socket.socket, keys: int, screen: int, resized: int) -> None:
    sources = [channel.fileno(), keys, resized]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if resized in ready:
            os.read(resized, 64)
            _send_size(channel, screen)
        if keys in ready:
            typed = os.read(keys, 1024)
            if typed:
                _send(channel, _INPUT, typed)
            else:
                sources.remove(keys)
        if channel.fileno() in ready:
            try:
                data = channel.recv(_CHUNK)
            except ConnectionResetError:
                return
            if not data:
                return
            while data:
                data = data[os.write(screen, data) :]


def _send(channel: socket.socket, kind: bytes, payload: bytes) -> None:
    with contextlib.suppress(OSError):  # the rank has just ended; its last words are still to read
        channel.sendall(_HEADER.pack(kind, len(payload)) + payload)


def _send_size(channel: socket.socket, screen: int) -> None:
    with contextlib.suppress(OSError):
        _send(channel, _SIZE, fcntl.ioctl(screen, termios.TIOCGWINSZ, bytes(8)))


@contextlib.contextmanager
def _raw(keys: int) -> Iterator[None]:
    before = termios.tcgetattr(keys)
    tty.setraw(keys)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
