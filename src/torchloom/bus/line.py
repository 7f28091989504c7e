"""One connection to a NATS server: being let in, saying, hearing, until it is lost.

All that one read brings is handed over at once. While much is said on subjects that are collected,
it reads only every few milliseconds: ten thousand agents then wake us a hundred times a second.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from torchloom.bus.api import Said
from torchloom.bus.parser import NoProtocol, Parser

_PING = 10.0  # seconds between two looks whether the server still answers
_MISSED = 2  # looks in a row without a word from it that mean it does not
_TOGETHER = 1 << 16  # bytes that are written without waiting for more
_PACE = 0.1  # seconds over which it is counted how much is said
_CROWD = 500.0  # collected messages a second from which on they are waited for
_MUCH = 1 << 15  # bytes of a read, after which there may be more to be read
_GATHER = 0.01  # seconds to wait for them

Put = Callable[[list[Said]], None]


class Line(asyncio.Protocol):
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
