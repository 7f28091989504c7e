"""Lend a terminal to a rank: the agent's end keeps the rank's, the command's end the user's.

The rank has a terminal of its own, so it outlives the command that started it; while the command
is there, keys and window sizes travel one way and output the other.
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

from torchloom.unix import received

_INPUT, _SIZE = b"i", b"s"
_HEADER = struct.Struct("!cH")
_CHUNK = 1 << 14
_HIGH_WATER = 1 << 18  # bytes waiting for the user's terminal before the rank must wait too


class TerminalRelay:
    """The agent's end. It waits for a slow terminal as the rank itself would, and for a dead one
    not at all."""

    def __init__(self, channel: socket.socket, selector: selectors.BaseSelector) -> None:
        self._channel = channel
        self._selector = selector
        self._waiting = b""  # for the user's terminal
        self._received = b""  # from the user's end, not yet understood
        self._typed = b""  # for the rank's terminal
        self._size = b""
        self._open = True
        self._terminal: int | None = None  # the rank's, as it was attached
        self._keyboard = -1  # a descriptor of its own, for what is typed
        channel.setblocking(False)
        selector.register(channel, selectors.EVENT_READ, self._serve)
        self._receive()  # the window's size came with the word to start

    @property
    def full(self) -> bool:
        return len(self._waiting) > _HIGH_WATER

    def attach(self, terminal: int) -> None:
        """Connect a rank's terminal: it has the window's size before the rank can ask."""
        self._terminal = terminal
        self._keyboard = os.dup(terminal)
        os.set_blocking(self._keyboard, False)
        self._resize()
        self._type()

    def detach(self, terminal: int) -> None:
        """Let a terminal go that has ended; a newer one stays."""
        if terminal == self._terminal:
            self._terminal = None
            self._watch_keyboard(False)
            os.close(self._keyboard)

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
        data = received(self._channel, _CHUNK)
        if data is None:
            return
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
        if kind == _INPUT:
            self._typed += payload
            self._type()
        elif kind == _SIZE:
            self._size = payload
            self._resize()

    def _resize(self) -> None:
        if self._terminal is not None and self._size:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, self._size)

    def _type(self, _ready: int = 0) -> None:
        """Type what the rank's terminal has room for; the rest follows when it has read some."""
        if self._terminal is None:
            return
        try:
            while self._typed:
                self._typed = self._typed[os.write(self._keyboard, self._typed) :]
        except BlockingIOError:
            pass
        except OSError:  # the rank has just ended
            self._typed = b""
        self._watch_keyboard(bool(self._typed))

    def _watch_keyboard(self, wanted: bool) -> None:
        watched = self._keyboard in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(self._keyboard, selectors.EVENT_WRITE, self._type)
        elif watched and not wanted:
            self._selector.unregister(self._keyboard)

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            self._waiting = b""
            self._selector.unregister(self._channel)
            with contextlib.suppress(OSError):  # others may hold it open, for our successor
                self._channel.shutdown(socket.SHUT_RDWR)
            self._channel.close()


def window_size(screen: int) -> bytes:
    """Return the frame with the size of the user's window; nothing if it is unknown."""
    try:
        return _frame(_SIZE, fcntl.ioctl(screen, termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return b""


def show(channel: socket.socket, keys: int, screen: int) -> None:
    """The command's end: connect the user's terminal until the rank has ended."""
    signalled, wake = os.pipe()
    os.set_blocking(wake, False)
    # The kernel's handler writes into the pipe: no signal is missed on the way into `select`.
    wake_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    previous = signal.signal(signal.SIGWINCH, lambda *_: None)
    try:
        with _raw(keys):
            _send(channel, window_size(screen))
            _relay(channel, keys, screen, signalled)
    finally:
        signal.signal(signal.SIGWINCH, previous)
        signal.set_wakeup_fd(wake_before)
        os.close(signalled)
        os.close(wake)


def _relay(channel: socket.socket, keys: int, screen: int, signalled: int) -> None:
    sources = [channel.fileno(), keys, signalled]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if signalled in ready:  # most likely a new size; other signals have handlers of their own
            os.read(signalled, 64)
            _send(channel, window_size(screen))
        if keys in ready:
            if typed := _typed(keys):
                _send(channel, _frame(_INPUT, typed))
            else:
                sources.remove(keys)
        if channel.fileno() in ready and not _show_some(channel, screen):
            return


def _typed(keys: int) -> bytes:
    """Return what was typed; nothing when the window was closed."""
    try:
        return os.read(keys, 1024)
    except OSError:
        return b""


def _show_some(channel: socket.socket, screen: int) -> bool:
    """Show what the rank printed; false when that, or the window, has ended."""
    try:
        data = channel.recv(_CHUNK)
        shown = bool(data)
        while data:
            data = data[os.write(screen, data) :]
    except OSError:
        return False
    return shown


def _frame(kind: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def _send(channel: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # the rank has just ended; its last words are still to read
        channel.sendall(frame)


@contextlib.contextmanager
def _raw(keys: int) -> Iterator[None]:
    before = termios.tcgetattr(keys)
    tty.setraw(keys)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the window was closed
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
