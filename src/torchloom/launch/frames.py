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
from typing import Any

from torchloom.unix import HEADER, LONGEST

Message = Mapping[str, Any]

_CHUNK = 1 << 16
_MOST_FDS = 64  # that go with one byte or more; the kernel takes 253
_MOST_UNCLAIMED = 4096  # descriptors that came and belong to no whole message yet


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
        on_message: Callable[[Message, list[int]], None],
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

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message as soon as the other end takes it; after its end, drop it."""
        if not self._open:
            return
        text = json.dumps(message).encode()
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

    def _pass_on(self, message: Message, fds: list[int]) -> None:
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

    def _next(self) -> tuple[Message, list[int]] | None:
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


def _read(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame from error
    if not isinstance(message, dict):
        raise BadFrame
    return message


def check(message: Message, word: str, shapes: Mapping[str, Mapping[str, type]]) -> None:
    """Raise BadFrame unless a message has all fields of its kind, which is named in `word`.

    A kind that is not in the table is for its receiver to ignore.
    """
    kind = message.get(word)
    if not isinstance(kind, str):
        raise BadFrame
    for name, wanted in shapes.get(kind, {}).items():
        value = message.get(name)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise BadFrame
