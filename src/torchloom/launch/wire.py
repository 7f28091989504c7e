"""Messages between launch process, agents and keepers: JSON in frames, with descriptors on the way.

A connection lives in its owner's selector and never blocks it: what cannot be sent yet waits here.
"""

import array
import contextlib
import json
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchloom.launch.host import sockets
from torchloom.specs.dataclass import dataclass
from torchloom.unix import HEADER, LONGEST

_KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}  # seconds, and how often
_SILENCE = 5000  # milliseconds that sent bytes may stay without an answer from the other kernel
_BACKLOG = 1024
_CHUNK = 1 << 16
_MOST_FDS = 64  # that go with one byte or more; the kernel takes 253
_MOST_UNCLAIMED = 4096  # descriptors that came and belong to no whole message yet


@dataclass(frozen=True, slots=True)
class LaunchAddress:
    """Where the launch process listens: a path on its own host, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "LaunchAddress":
        if text.startswith("/"):
            return cls(path=text)
        host, _, port = text.rpartition(":")
        return cls(host=host.strip("[]"), port=int(port))

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout: float = 10.0) -> socket.socket:
        """Call the launch process; OSError when it does not answer."""
        if self.path:
            return sockets.connect(Path(self.path))
        channel = socket.create_connection((self.host, self.port), timeout)
        watch(channel)
        return channel


def listen_on(host: str, port: int = 0) -> socket.socket:
    """Take calls from other hosts at one address of this one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def watch(channel: socket.socket) -> None:
    """Have the kernel notice that the other host is gone, whatever its processes do."""
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE)


def own_address_towards(host: str) -> str:
    """Return the address of this host that another one sees; nothing is sent to find out."""
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        address: str = probe.getsockname()[0]
    return address


def nonce() -> str:
    return os.urandom(16).hex()


def proof(token: str, who: str, challenge: str) -> str:
    """Return what only a holder of the token can answer to a challenge."""
    import hmac

    return hmac.new(
        token.encode(), f"{who}:{challenge}".encode(errors="replace"), "sha256"
    ).hexdigest()


def is_proof(given: object, token: str, who: str, challenge: str) -> bool:
    import hmac

    shown = str(given).encode(errors="replace")  # a caller may send half of a letter
    return hmac.compare_digest(shown, proof(token, who, challenge).encode())


WireMessage = Mapping[str, Any]


class Encodable(Protocol):
    """A message that becomes a JSON object."""

    def to_wire(self) -> WireMessage: ...


class BadFrame(Exception):
    """What came is no message, or none that its receiver understands: the connection ends."""


class Connection:
    """One end of a stream of messages. `on_message` gets each with its descriptors, which are its
    to close; `on_end` is called once, when the other end is gone or speaks no language of ours.
    A receiver that raises BadFrame has the connection ended so. `longest` limits what is taken."""

    def __init__(
        self,
        channel: socket.socket,
        selector: selectors.BaseSelector,
        on_message: Callable[[WireMessage, list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._selector = selector
        self._on_message = on_message
        self._on_end = on_end
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._waiting = 0
        self.longest = LONGEST  # bytes of a message
        self.taken = 0  # bytes that came so far
        self._received = bytearray()
        self._fds: deque[int] = deque()
        self._open = True
        self._takes_fds = channel.family == socket.AF_UNIX
        channel.setblocking(False)
        selector.register(channel, selectors.EVENT_READ, self._serve)

    @property
    def channel(self) -> socket.socket:
        return self._channel

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def unsent(self) -> int:
        """Bytes that wait for the other end to read."""
        return self._waiting

    def send(self, message: Encodable | WireMessage, fds: Sequence[int] = ()) -> None:
        """Send a message as soon as the other end takes it; after its end, drop it."""
        if not self._open:
            return
        data = message if isinstance(message, Mapping) else message.to_wire()
        text = json.dumps(data).encode()
        frame = HEADER.pack(len(text), len(fds)) + text
        self._unsent.append((frame, [os.dup(fd) for fd in fds]))
        self._waiting += len(frame)
        self._flush()

    def finish(self, patience: float = 1.0) -> None:
        """Send what waits, for as long as patience lasts, and close."""
        with contextlib.suppress(OSError):
            self._channel.settimeout(patience)
            while self._open and self._unsent:
                self._send_some()
        self.close()

    def close(self) -> None:
        """Hang up without a word; `on_end` is not called."""
        if self._open:
            self._open = False
            self._selector.unregister(self._channel)
            self._channel.close()
            self._drop_unsent()
            while self._fds:
                os.close(self._fds.popleft())

    def _serve(self, ready: int) -> None:
        if ready & selectors.EVENT_WRITE:
            self._flush()
        if ready & selectors.EVENT_READ and self._open:
            self._receive()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._send_some()
        except BlockingIOError:
            pass
        except OSError:
            self._drop_unsent()  # the end shows itself when reading; what came before it counts
        if self._open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(self._channel, wanted, self._serve)

    def _send_some(self) -> None:
        frame, fds = self._unsent[0]
        now, later = fds[:_MOST_FDS], fds[_MOST_FDS:]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", now))] if now else []
        sent = self._channel.sendmsg([frame[:1] if later else frame], rights)
        for fd in now:
            os.close(fd)
        self._waiting -= sent
        self._unsent[0] = (frame[sent:], later)
        if sent == len(frame):
            self._unsent.popleft()

    def _drop_unsent(self) -> None:
        self._waiting = 0
        while self._unsent:
            for fd in self._unsent.popleft()[1]:
                os.close(fd)

    def _receive(self) -> None:
        try:
            data = self._read()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self.taken += len(data)
        self._received += data
        try:
            while self._open and (frame := self._next()):
                self._pass_on(*frame)
        except BadFrame:
            self._end()

    def _pass_on(self, message: WireMessage, fds: list[int]) -> None:
        try:
            self._on_message(message, fds)
        except BadFrame:
            for fd in fds:
                os.close(fd)
            raise

    def _end(self) -> None:
        self.close()
        self._on_end()

    def _read(self) -> bytes:
        if not self._takes_fds:
            return self._channel.recv(_CHUNK)
        room = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
        data, extra, _, _ = self._channel.recvmsg(_CHUNK, room)
        for _, _, rights in extra:
            fds = array.array("i")
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
            for fd in fds:
                os.set_inheritable(fd, False)
            self._fds.extend(fds)
        return data if len(self._fds) <= _MOST_UNCLAIMED else b""

    def _next(self) -> tuple[WireMessage, list[int]] | None:
        if len(self._received) < HEADER.size:
            return None
        length, count = HEADER.unpack_from(self._received)
        if length > self.longest:
            raise BadFrame
        end = HEADER.size + length
        if len(self._received) < end:
            return None
        message = _read(bytes(self._received[HEADER.size : end]))
        del self._received[:end]
        if len(self._fds) < count:
            raise BadFrame
        return message, [self._fds.popleft() for _ in range(count)]


def _read(text: bytes) -> WireMessage:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame from error
    if not isinstance(message, dict):
        raise BadFrame
    return message
