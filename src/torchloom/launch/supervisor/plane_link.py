"""The launch process' connection to the node agent of its host: reports incarnations, gets orders.

The connection is served by the launch process' selector and never blocks it. While there is no
node agent it connects again and again; a new one is sent the whole state.
"""

import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from torchloom import settings
from torchloom.bus.codec import Frames, MessageReader, frame
from torchloom.launch.host.sockets import UPLINK, Timers
from torchloom.messages.membership import ProcessReports, ToLaunch
from torchloom.messages.plane import Kept, Kill, Message, Register
from torchloom.unix import reachable, received, same_user

AGAIN = 0.25  # seconds between two calls
EVERY = 1.0  # seconds between two words where nothing happens
_CHUNK = 1 << 16
_LINE = "upline"


class PlaneLink:
    """One line. `register` and `lives` tell what is to be said now; orders go to `on_order`."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        later: Timers,
        register: Callable[[], Register],
        lives: Callable[[], ProcessReports],
        on_order: Callable[[Message], None],
        address: Path | None = None,
    ) -> None:
        self._selector = selector
        self._later = later
        self._register = register
        self._lives = lives
        self._on_order = on_order
        self._address = address or settings.plane_dir() / UPLINK
        self._reader = MessageReader[Message](ToLaunch | Kept | Kill)
        self._channel: socket.socket | None = None
        self._frames = Frames()
        self._unsent = b""
        self._is_stale = False  # something has changed since what waits to be sent was said

    def open(self) -> None:
        """Call the agent, now and until it answers."""
        channel = self._call()
        if channel is None:
            self._later.put(_LINE, AGAIN, self.open)
            return
        self._channel, self._frames = channel, Frames(self._reader.dropped)
        self._unsent, self._is_stale = b"", False
        self._selector.register(channel, selectors.EVENT_READ, self._serve)
        self.introduce()

    def introduce(self) -> None:
        """Say who is here, and all there is to say."""
        self._send(frame(self._register()))
        self.tell()

    def tell(self) -> None:
        """Say how the lives are; to one who does not read, when he does."""
        if self._channel is None:
            return
        if self._unsent:
            self._is_stale = True
        else:
            self._send(frame(self._lives()))
        if self._channel is not None:
            self._later.put(_LINE, EVERY, self.tell)

    def close(self) -> None:
        """Hang up for good."""
        self._later.drop(_LINE)
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _call(self) -> socket.socket | None:
        channel = socket.socket(socket.AF_UNIX)
        channel.setblocking(False)
        try:
            with reachable(self._address) as address:
                channel.connect(address)
            if same_user(channel):
                return channel
        except OSError:  # no agent is there, or too many call at once
            pass
        channel.close()
        return None

    def _serve(self, ready: int) -> None:
        if ready & selectors.EVENT_WRITE:
            self._flush()
        if ready & selectors.EVENT_READ and self._channel is not None:
            self._handle()

    def _handle(self) -> None:
        assert self._channel is not None
        data = received(self._channel, _CHUNK)
        if data is None:
            return
        if not data:
            self._lose()
            return
        for whole in self._frames.feed(data):
            message = self._reader.read(whole)
            if message is not None and not isinstance(message, Kept | Kill):
                self._on_order(message)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        if self._channel is None:
            return
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._lose()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._channel, wanted, self._serve)
        if self._is_stale and not self._unsent:
            self._is_stale = False
            self.tell()

    def _lose(self) -> None:
        self.close()
        self._later.put(_LINE, AGAIN, self.open)
