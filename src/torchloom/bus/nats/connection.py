"""One connection to a NATS server: its protocol, from the greeting until it is lost.

All messages of one read are handed over at once. While many messages arrive on collected subjects,
it reads only every few milliseconds: ten thousand agents then cause a hundred wake-ups a second.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchloom.bus.api import RawMessage

_MOST_WORDS = 1 << 20  # bytes of a protocol line; a server's INFO can be long
_MOST_DATA = 64 << 20  # bytes of a message: no server takes more
_NO_RESPONDERS = b"NATS/1.0 503"
_PING = 10.0  # seconds between two pings
_MISSED = 2  # pings in a row without any data from the server, after which it is lost
_TOGETHER = 1 << 16  # bytes that are written without waiting for more
_PACE = 0.1  # seconds over which collected messages are counted
_CROWD = 500.0  # collected messages a second from which on reading pauses
_MUCH = 1 << 15  # bytes of a read, after which there may be more to be read
_GATHER = 0.01  # seconds that reading pauses


class NoProtocol(Exception):
    """The data is not of the NATS protocol."""


@dataclass(slots=True)
class ParsedInput:
    """What was complete: messages by subscription, requests without a subscriber, protocol lines.

    The order is that of the server within a subscription, and within the protocol lines.
    """

    messages: dict[bytes, list[RawMessage]] = field(default_factory=dict)
    unanswerable: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)


class Parser:
    """Takes bytes as they arrive and returns what is complete; the rest waits for more."""

    def __init__(self) -> None:
        self._rest = b""
        self._wanted = 0  # bytes without which the rest cannot be complete

    def feed(self, data: bytes) -> ParsedInput:
        """Return what these bytes complete; raises NoProtocol."""
        parsed = ParsedInput()
        data = self._rest + data if self._rest else data
        start = 0
        if len(data) >= self._wanted:
            try:
                start = self._cut(data, parsed)
            except (ValueError, IndexError) as error:
                raise NoProtocol(str(error)) from error
        self._rest = data[start:]
        return parsed

    def _cut(self, data: bytes, parsed: ParsedInput) -> int:
        """Parse all that is complete and return where the rest begins.

        Messages without headers, which are nearly all, take the shortest path.
        """
        start, have, messages = 0, len(data), parsed.messages
        self._wanted = 0
        while (end := data.find(b"\r\n", start)) >= 0:
            if data.startswith(b"MSG ", start):
                words = data[start:end].split(b" ")
                after = _after(end, int(words[-1]))
                if after <= have:
                    reply = words[3].decode() if len(words) == 5 else ""
                    message = (words[1].decode(), data[end + 2 : after - 2], reply)
                    if words[2] in messages:
                        messages[words[2]].append(message)
                    else:
                        messages[words[2]] = [message]
            elif data.startswith(b"HMSG ", start):
                after = _with_headers(data, start, end, parsed)
            else:
                parsed.lines.append(data[start:end])
                after = end + 2
            if after > have:
                self._wanted = after - start
                return start
            start = after
        if have - start > _MOST_WORDS:
            raise NoProtocol("a line without an end")
        return start


def _after(end: int, length: int) -> int:
    """Return where a message of this length ends, whose protocol line ends at `end`."""
    if not 0 <= length <= _MOST_DATA:
        raise NoProtocol(f"a message of {length} bytes")
    return end + length + 4


def _with_headers(data: bytes, start: int, end: int, parsed: ParsedInput) -> int:
    """Parse a message with headers, if it is complete; only the status "no responders" counts."""
    words = data[start:end].split(b" ")
    body, after = _after(end, int(words[-2])) - 2, _after(end, int(words[-1]))
    if body > after - 2:
        raise NoProtocol("headers that are longer than their message")
    if after > len(data):
        return after
    subject = words[1].decode()
    if body == after - 2 and data.startswith(_NO_RESPONDERS, end + 2):
        parsed.unanswerable.append(subject)
    else:
        reply = words[3].decode() if len(words) == 6 else ""
        parsed.messages.setdefault(words[2], []).append((subject, data[body : after - 2], reply))
    return after


Put = Callable[[list[RawMessage]], None]


class NatsConnection(asyncio.Protocol):
    """A connection. It sends in order, soon, and hands what arrives to its subscriptions.

    `on_complaint` is called with each error of the server; `on_unanswerable` with the reply subject
    of a request that has no subscriber.
    """

    def __init__(
        self,
        on_complaint: Callable[[str], None] = lambda error: None,
        on_unanswerable: Callable[[str], None] = lambda reply: None,
    ) -> None:
        self.complaint = ""  # the server's last error
        self.longest = 1 << 20  # bytes of a message that the server takes
        self._on_complaint = on_complaint
        self._on_unanswerable = on_unanswerable
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._greeted: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._pings: deque[asyncio.Future[bool]] = deque()
        self._transport: asyncio.Transport | None = None
        self._parser = Parser()
        self._subscriptions: dict[bytes, tuple[Put, bool]] = {}
        self._last = 0  # subscription
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._silent = 0  # pings without any data since
        self._collected, self._counting_since, self._is_crowded = 0, 0.0, False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent(self) -> int:
        """Return how many bytes the server has not taken yet."""
        written = self._transport.get_write_buffer_size() if self._transport else 0
        return self._unwritten_bytes + written

    async def greeting(self) -> dict[str, Any]:
        """Return the server's INFO."""
        return await self._greeted

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Switch to TLS."""
        assert self._transport is not None
        better = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if better is None:
            raise ConnectionError("the server closed the connection")
        self._transport = better

    async def is_answered(self) -> bool:
        """Return True when the server has received all that was sent, False when it is lost."""
        return await self._ping()

    def subscribe(self, subject: str, put: Put, *, is_bulk: bool = False) -> bytes:
        """Hand messages of a subject to `put`; return the id of this subscription."""
        self._last += 1
        sid = b"%d" % self._last
        self._subscriptions[sid] = put, is_bulk
        self.send(b"SUB %b %b\r\n" % (subject.encode(), sid))
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription."""
        if self._subscriptions.pop(sid, None) is not None:
            self.send(b"UNSUB %b\r\n" % sid)

    def publish(self, subject: str, data: bytes, reply: str) -> None:
        """Send a message to the subscribers of a subject."""
        to = f"{subject} {reply}" if reply else subject
        self.send(b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(data), data))

    def send(self, data: bytes) -> None:
        """Write data together with all else that is sent in this iteration of the loop."""
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes > _TOGETHER:
            self._write()

    async def close(self, patience: float) -> None:
        """Close when all that was sent has left, or when that takes too long."""
        if self._transport is None:
            return
        self._write()
        self._transport.close()
        await asyncio.wait((self.lost,), timeout=patience)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next_check = self._loop.call_later(_PING, self._check)

    def connection_lost(self, error: Exception | None) -> None:
        self._next_check.cancel()
        why = self.complaint or str(error or "the server closed the connection")
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionError(why))
        while self._pings:
            _settle(self._pings.popleft(), False)
        if not self.lost.done():
            self.complaint = why
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        try:
            parsed = self._parser.feed(data)
            for line in parsed.lines:
                self._obey(line)
        except (NoProtocol, ValueError) as error:
            self._complain(f"this is not a NATS server: {error}")
            self.abort()
            return
        for sid, messages in parsed.messages.items():
            put, is_bulk = self._subscriptions.get(sid, (_nowhere, False))
            put(messages)
            if is_bulk:
                self._collected += len(messages)
        for reply in parsed.unanswerable:
            self._on_unanswerable(reply)
        if (self._collected or self._is_crowded) and len(data) < _MUCH:
            self._pace()

    def _obey(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        match verb.upper():
            case b"PING":
                self.send(b"PONG\r\n")
            case b"PONG":
                if self._pings:
                    _settle(self._pings.popleft(), True)
            case b"-ERR":
                self._complain(rest.decode(errors="replace").strip("' "))
            case b"INFO":
                self._learn(json.loads(rest))
            case b"+OK" | b"":
                pass
            case _:
                raise NoProtocol(repr(line[:80]))

    def _learn(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise NoProtocol("its INFO is not an object")
        self.longest = int(info.get("max_payload", self.longest))
        if not self._greeted.done():
            self._greeted.set_result(info)

    def _complain(self, error: str) -> None:
        self.complaint = error
        self._on_complaint(error)

    def _pace(self) -> None:
        """Read again at once, or after a pause while many messages arrive."""
        now = self._loop.time()
        lasted = now - self._counting_since
        if lasted > _PACE:
            self._is_crowded = self._collected > _CROWD * lasted
            self._collected, self._counting_since = 0, now
        if self._is_crowded and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_later(_GATHER, self._transport.resume_reading)

    def _ping(self) -> asyncio.Future[bool]:
        answered: asyncio.Future[bool] = self._loop.create_future()
        if self.is_open:
            self._pings.append(answered)
            self.send(b"PING\r\n")
        else:
            answered.set_result(False)
        return answered

    def _check(self) -> None:
        """Close the connection to a server that has been silent for too long."""
        if self._silent >= _MISSED:
            self._complain("the server does not answer")
            self.abort()
            return
        self._silent += 1
        self._ping()
        self._next_check = self._loop.call_later(_PING, self._check)

    def _write(self) -> None:
        data, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
        if data and self.is_open:
            assert self._transport is not None
            self._transport.write(b"".join(data))


def _settle(waiting: "asyncio.Future[bool]", value: bool) -> None:
    if not waiting.done():
        waiting.set_result(value)


def _nowhere(messages: list[RawMessage]) -> None:
    """Drop messages for a subscription that has ended."""
