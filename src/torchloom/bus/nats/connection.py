"""One connection to a NATS server: being let in, saying, hearing, until it is lost.

All that one read brings is handed over at once. While much is said on subjects that are collected,
it reads only every few milliseconds: ten thousand agents then wake us a hundred times a second.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchloom.bus.api import Said

_MOST_WORDS = 1 << 20  # bytes of a line; what a server says of itself can be long
_MOST_DATA = 64 << 20  # bytes of a message: no server takes more
_NOBODY = b"NATS/1.0 503"
_PING = 10.0  # seconds between two looks whether the server still answers
_MISSED = 2  # looks in a row without a word from it that mean it does not
_TOGETHER = 1 << 16  # bytes that are written without waiting for more
_PACE = 0.1  # seconds over which it is counted how much is said
_CROWD = 500.0  # collected messages a second from which on they are waited for
_MUCH = 1 << 15  # bytes of a read, after which there may be more to be read
_GATHER = 0.01  # seconds to wait for them


class NoProtocol(Exception):
    """What came is not what a NATS server says."""


@dataclass(slots=True)
class ParsedInput:
    """What was whole: messages by subscription, requests without a hearer, and the server's words.

    The order is that of the server within a subscription, and within its words.
    """

    messages: dict[bytes, list[Said]] = field(default_factory=dict)
    unheard: list[str] = field(default_factory=list)
    words: list[bytes] = field(default_factory=list)


class Parser:
    """Takes bytes as they come and returns what is whole by now; the rest waits for more."""

    def __init__(self) -> None:
        self._rest = b""
        self._wanted = 0  # bytes without which what waits cannot be whole

    def feed(self, data: bytes) -> ParsedInput:
        """Return what these bytes complete; raises NoProtocol."""
        heard = ParsedInput()
        data = self._rest + data if self._rest else data
        start = 0
        if len(data) >= self._wanted:
            try:
                start = self._cut(data, heard)
            except (ValueError, IndexError) as error:
                raise NoProtocol(str(error)) from error
        self._rest = data[start:]
        return heard

    def _cut(self, data: bytes, heard: ParsedInput) -> int:
        """Take in all that is whole and return where the rest begins.

        Messages without headers, which is nearly all there is, take the shortest way.
        """
        start, have, messages = 0, len(data), heard.messages
        self._wanted = 0
        while (end := data.find(b"\r\n", start)) >= 0:
            if data.startswith(b"MSG ", start):
                words = data[start:end].split(b" ")
                after = _after(end, int(words[-1]))
                if after <= have:
                    reply = words[3].decode() if len(words) == 5 else ""
                    said = (words[1].decode(), data[end + 2 : after - 2], reply)
                    if words[2] in messages:
                        messages[words[2]].append(said)
                    else:
                        messages[words[2]] = [said]
            elif data.startswith(b"HMSG ", start):
                after = _with_headers(data, start, end, heard)
            else:
                heard.words.append(data[start:end])
                after = end + 2
            if after > have:
                self._wanted = after - start
                return start
            start = after
        if have - start > _MOST_WORDS:
            raise NoProtocol("a line without an end")
        return start


def _after(end: int, length: int) -> int:
    """Return where the next thing begins after a message of a length, whose line ends here."""
    if not 0 <= length <= _MOST_DATA:
        raise NoProtocol(f"a message of {length} bytes")
    return end + length + 4


def _with_headers(data: bytes, start: int, end: int, heard: ParsedInput) -> int:
    """Take in a message with headers, if it is whole; of those only one says something to us."""
    words = data[start:end].split(b" ")
    body, after = _after(end, int(words[-2])) - 2, _after(end, int(words[-1]))
    if body > after - 2:
        raise NoProtocol("headers that are longer than their message")
    if after > len(data):
        return after
    subject = words[1].decode()
    if body == after - 2 and data.startswith(_NOBODY, end + 2):
        heard.unheard.append(subject)
    else:
        reply = words[3].decode() if len(words) == 6 else ""
        heard.messages.setdefault(words[2], []).append((subject, data[body : after - 2], reply))
    return after


Put = Callable[[list[Said]], None]


class NatsConnection(asyncio.Protocol):
    """A connection. What it says leaves in order, soon; what it hears goes to whoever listens."""

    def __init__(self) -> None:
        self.complaint = ""  # what the server disliked last
        self.longest = 1 << 20  # bytes of a message that the server takes
        self.on_complaint: Callable[[str], None] = lambda words: None
        self.on_unheard: Callable[[str], None] = lambda reply: None
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._greeted: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._pings: deque[asyncio.Future[bool]] = deque()
        self._transport: asyncio.Transport | None = None
        self._parser = Parser()
        self._listening: dict[bytes, tuple[Put, bool]] = {}
        self._last = 0  # subscription
        self._unsaid: list[bytes] = []
        self._unsaid_bytes = 0
        self._silent = 0  # looks without a word
        self._collected, self._counting_since, self._is_crowded = 0, 0.0, False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent(self) -> int:
        """Return how many bytes the server has not taken yet."""
        written = self._transport.get_write_buffer_size() if self._transport else 0
        return self._unsaid_bytes + written

    async def greeting(self) -> dict[str, Any]:
        """Return what the server says of itself."""
        return await self._greeted

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Go on encrypted."""
        assert self._transport is not None
        better = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if better is None:
            raise ConnectionError("the server hung up")
        self._transport = better

    async def is_answered(self) -> bool:
        """Come back when the server has heard all that was said, or with False when it is lost."""
        return await self._ping()

    def listen(self, subject: str, put: Put, *, is_bulk: bool = False) -> bytes:
        """Have what is said on a subject put somewhere; return the name of this subscription."""
        self._last += 1
        sid = b"%d" % self._last
        self._listening[sid] = put, is_bulk
        self.say(b"SUB %b %b\r\n" % (subject.encode(), sid))
        return sid

    def unlisten(self, sid: bytes) -> None:
        """End a subscription."""
        if self._listening.pop(sid, None) is not None:
            self.say(b"UNSUB %b\r\n" % sid)

    def publish(self, subject: str, data: bytes, reply: str) -> None:
        """Say something to whoever listens."""
        to = f"{subject} {reply}" if reply else subject
        self.say(b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(data), data))

    def say(self, words: bytes) -> None:
        """Have this written with whatever else is said in this moment."""
        if not self._unsaid:
            self._loop.call_soon(self._write)
        self._unsaid.append(words)
        self._unsaid_bytes += len(words)
        if self._unsaid_bytes > _TOGETHER:
            self._write()

    async def close(self, patience: float) -> None:
        """Hang up when all that was said has left, or when that takes too long."""
        if self._transport is None:
            return
        self._write()
        self._transport.close()
        await asyncio.wait((self.lost,), timeout=patience)
        self.abort()

    def abort(self) -> None:
        """Hang up now."""
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._looking = self._loop.call_later(_PING, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        self._looking.cancel()
        why = self.complaint or str(error or "the server hung up")
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
            heard = self._parser.feed(data)
            for words in heard.words:
                self._obey(words)
        except (NoProtocol, ValueError) as error:
            self._complain(f"this is no NATS server: {error}")
            self.abort()
            return
        for sid, said in heard.messages.items():
            put, is_bulk = self._listening.get(sid, (_nowhere, False))
            put(said)
            if is_bulk:
                self._collected += len(said)
        for reply in heard.unheard:
            self.on_unheard(reply)
        if (self._collected or self._is_crowded) and len(data) < _MUCH:
            self._pace()

    def _obey(self, words: bytes) -> None:
        verb, _, rest = words.partition(b" ")
        match verb.upper():
            case b"PING":
                self.say(b"PONG\r\n")
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
                raise NoProtocol(repr(words[:80]))

    def _learn(self, said: Any) -> None:
        if not isinstance(said, dict):
            raise NoProtocol("it says nothing of itself")
        self.longest = int(said.get("max_payload", self.longest))
        if not self._greeted.done():
            self._greeted.set_result(said)

    def _complain(self, words: str) -> None:
        self.complaint = words
        self.on_complaint(words)

    def _pace(self) -> None:
        """Read again at once, or in a moment when much is being said."""
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
            self.say(b"PING\r\n")
        else:
            answered.set_result(False)
        return answered

    def _look(self) -> None:
        """Give a server up that has not said anything for long."""
        if self._silent >= _MISSED:
            self._complain("the server does not answer")
            self.abort()
            return
        self._silent += 1
        self._ping()
        self._looking = self._loop.call_later(_PING, self._look)

    def _write(self) -> None:
        words, self._unsaid, self._unsaid_bytes = self._unsaid, [], 0
        if words and self.is_open:
            assert self._transport is not None
            self._transport.write(b"".join(words))


def _settle(waiting: "asyncio.Future[bool]", value: bool) -> None:
    if not waiting.done():
        waiting.set_result(value)


def _nowhere(said: list[Said]) -> None:
    """Let go what came for a subscription that has ended."""
