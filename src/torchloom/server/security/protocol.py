"""HTTP of unknown clients: counted and timed before a byte of it is kept.

uvicorn's parser has no limits of its own: it collects a header of any length, waits for its end
for ever, and queues every request that a client sends ahead. `LimitedProtocol` hands it small
pieces, counts what they are part of, and answers 414, 431, 408 or 413 by itself.
`ConnectionListener` accepts the connections, some in each turn of the event loop, and limits
handshakes, too.
"""

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable, Coroutine
from functools import cache
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from torchloom.server.problems import problem_response
from torchloom.server.security.limits import Connections, TurnBudget, Visit
from torchloom.server.stream.frames import FramedProtocol

_PIECE = 16 << 10  # bytes that are parsed before they are judged
_DISCARDED = 1 << 20  # bytes that are read, and not kept, behind a refusal
_LINE = 8000  # bytes of a URL or header, where the WebSocket's parser reads it again
_LINGER = 1.0  # seconds in which a client that is refused may still send, and reads why
_NO_DESCRIPTOR = 0.1  # seconds before the next one is accepted, when none can be
_SEPARATORS = 4  # bytes between and behind a header's name and value

Problem = tuple[int, str, str, str]  # a status, a code, what is wrong, what to do

_URL = (414, "url_too_long", "the address of a request is too long", "name fewer things in it")
_HEAD = (431, "headers_too_large", "the headers are too large", "send fewer or smaller headers")
_LATE = (408, "too_late", "the request was not sent in time", "send it again, all of it at once")
_BODY = (413, "too_large", "more was sent than is read of a request", "send less")
_FRAMING = (400, "bad_request", "the chunks of the body are too small", "send larger chunks")
_INVALID = (400, "bad_request", "this is not an HTTP request", "send HTTP/1.1")


class OpenTransport:
    """A connection as a response uses it; what is written after its end is dropped.

    uvloop raises then, and uvicorn marks only the last of several requests as disconnected.
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. Where a head, a body or an idle time is over, so is it."""

    def __init__(
        self,
        table: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        visit: Visit,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._limits = table.limits
        self._budget = table.budget
        self._visit = visit
        self._held = b""  # what has come and is parsed in a later turn of the event loop
        self._is_over = False
        self._in_head = self._in_body = self._has_ended = False  # of the request that is parsed
        self._is_timed = True  # the head's time has begun
        self._problem: Problem | None = None
        self._head = self._header_bytes = self._header_count = 0
        self._wire = self._content = self._discarded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._visit.pass_on(transport, self._on_late)
        self._visit.wait(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._held = b""
        self._visit.leave()
        super().connection_lost(exc)

    def abandon(self) -> None:
        """Break reference cycles, so that no collection is needed: there will be no connection."""
        self._visit.leave()
        self.parser = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            self._discard(len(data))
        elif self._held:
            self._held += data
        else:
            self._held = data
            if not self._budget.run(self._visit.peer, self._parse_held):
                self.transport.pause_reading()

    def _parse_held(self) -> None:
        """Parse what has come; read on unless the request under way has enough of its body."""
        data, self._held = self._held, b""
        if not data or self.transport.is_closing():
            return
        if not self.flow.read_paused:
            self.transport.resume_reading()
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        for start in range(0, len(data), _PIECE):
            if not self._feed(data[start : start + _PIECE]):
                return
        if self._head and not self._in_body and not self._is_busy:
            self._expect_head()

    @property
    def _is_busy(self) -> bool:
        """Return whether a response is pending."""
        return self.cycle is not None and not self.cycle.response_complete

    def _feed(self, piece: bytes) -> bool:
        """Parse one piece and check the limits of its part; false when nothing may follow."""
        was_body, self._has_ended = self._in_body, False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return self._upgrade()
        except httptools.HttpParserError:
            return self._refuse(self._problem or _INVALID)
        if self._in_body:
            self._wire += len(piece) if was_body else 0
        elif self._in_head or not self._has_ended:  # else nothing is known to follow a request
            self._head += len(piece)
        if self._head > self._limits.head:
            return self._refuse(_HEAD)
        if self._wire > self._limits.body:
            return self._refuse(_BODY)
        return self._wire - self._content <= self._limits.framing or self._refuse(_FRAMING)

    def _upgrade(self) -> bool:
        """Become a WebSocket; with any other upgrade the connection ends behind its response."""
        if not self._should_upgrade():
            if self._is_busy:
                self.cycle.keep_alive = False
        elif len(self.url) > _LINE:
            return self._refuse(_URL)
        elif any(len(name) + len(value) > _LINE for name, value in self.headers):
            return self._refuse(_HEAD)
        elif self._is_busy:
            return self._refuse(_INVALID)
        else:
            self.handle_websocket_upgrade()
            protocol = self.transport.get_protocol()
            if isinstance(protocol, FramedProtocol):
                protocol.visited_by(self._visit, self._limits.body_seconds)
        self._is_over = True
        return False

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._header_bytes = self._header_count = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url:
            self._stop(_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value) + _SEPARATORS
        if self._header_count > self._limits.headers or self._header_bytes > self._limits.head:
            self._stop(_HEAD)
        if not self._in_body:  # a trailer is no header: nothing here reads one
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + self._header_bytes > self._limits.head:
            self._stop(_HEAD)
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop(_BODY)
        super().on_headers_complete()
        self._in_head, self._in_body, self._is_timed = False, True, False
        self._head = self._wire = self._content = 0
        self._visit.wait(self._limits.body_seconds)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.transport = OpenTransport(self.transport)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body, self._has_ended, self._head = False, True, 0
        if self._is_busy:
            self._visit.serve()
        else:
            self._visit.wait(self._limits.idle_seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the table has a time of its own
        if self._is_over or self._in_body or self._is_busy or self.transport.is_closing():
            return
        if self._head:
            self._expect_head()
        else:
            self._visit.wait(self._limits.idle_seconds)

    # Callbacks of the transport

    def pause_writing(self) -> None:
        super().pause_writing()
        self._visit.stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._visit.stalled = None

    # Refusals

    def _stop(self, problem: Problem) -> None:
        """Stop the parser at once: it fails when one of its callbacks does."""
        self._problem = problem
        raise ValueError(problem[1])

    def _expect_head(self) -> None:
        """Start the time limit of a request head; more bytes of it do not extend the limit."""
        if not self._is_timed:
            self._is_timed = True
            self._visit.wait(self._limits.head_seconds)

    def _on_late(self) -> None:
        """End a connection whose time is over; a client that has sent something gets the reason."""
        if self._is_over or not (self._head or self._in_body):
            self.transport.abort()
        else:
            self._refuse(_LATE)

    def _refuse(self, problem: Problem) -> bool:
        """Answer with a problem, if no other response is owed first, and end the connection."""
        self._is_over = True
        visit = self._visit
        visit.refuse(str(problem[0]))
        is_owed = self._is_busy and not self.cycle.response_started
        if self.pipeline or (is_owed if self._in_body else self._is_busy) != self._in_body:
            self.transport.abort()
            return False
        if self._is_busy:
            self.cycle.disconnected = True  # what the app still answers goes nowhere
            self.cycle.message_event.set()
        self.transport.write(_written(problem))
        if not self.transport.can_write_eof():
            self.transport.close()
            return False
        self.flow.resume_reading()
        self.transport.write_eof()
        visit.wait(_LINGER)
        return False

    def _discard(self, length: int) -> None:
        self._discarded += length
        if self._discarded > _DISCARDED:
            self.transport.abort()


class Tls(sslproto.SSLProtocol):
    """TLS of one connection. uvloop's own would serve every client in the turn its bytes arrive."""

    max_size = 32 << 10  # bytes of its buffer, which is there as long as the connection is


class HandshakeGate(asyncio.Protocol):
    """Passes the bytes of a handshake to TLS within the time of a turn of the event loop.

    While they wait, nothing more is read of the client. Behind the handshake it is not needed.
    """

    def __init__(self, budget: TurnBudget, peer: str, tls: Tls, done: asyncio.Future[None]) -> None:
        self._budget = budget
        self._peer = peer
        self._tls = tls
        self._done = done
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._tls.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        is_waiting, self._held = bool(self._held), self._held + data
        if not is_waiting and not self._budget.run(self._peer, self._feed):
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held = b""
        self._tls.connection_lost(exc)

    def _feed(self) -> None:
        data, self._held = self._held, b""
        if data and not self._transport.is_closing():
            self._transport.resume_reading()
        while data and not self._transport.is_closing():
            buffer = self._tls.get_buffer(len(data))
            size = min(len(data), len(buffer))
            buffer[:size], data = data[:size], data[size:]
            self._tls.buffer_updated(size)
        if self._done.done() and not self._transport.is_closing():
            self._transport.set_protocol(self._tls)


class Handshake(asyncio.Transport):
    """A connection until its protocol has it, as the table of connections sees it."""

    def __init__(self, channel: socket.socket, peer: object) -> None:
        super().__init__({"peername": peer})
        self._channel = channel
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work, name="accepted")

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        task, self._task = self._task, None  # its error would refer to what refers to it
        if task is not None:
            task.cancel()
        self._channel.close()


class ConnectionListener:
    """Accepts connections, some in each turn of the event loop; more wait in the kernel.

    Where there is a certificate, each shakes hands first; those that do not are counted and ended.
    """

    def __init__(
        self,
        table: Connections,
        context: ssl.SSLContext | None,
        make: Callable[[Visit], LimitedProtocol],
    ) -> None:
        self._table = table
        self._context = context
        self._make = make

    async def run(self, listener: socket.socket) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            for _ in range(self._table.limits.accepted):
                try:
                    channel, peer = await loop.sock_accept(listener)
                except OSError:  # no descriptor is free, or the client has gone
                    await asyncio.sleep(_NO_DESCRIPTOR)
                else:
                    self._take(channel, peer)
            await asyncio.sleep(0)

    def _take(self, channel: socket.socket, peer: object) -> None:
        limits, handshake = self._table.limits, Handshake(channel, peer)
        visit = Visit(self._table, handshake, handshake.abort)
        seconds = limits.handshake_seconds if self._context else limits.head_seconds
        if self._table.arrive(visit, seconds):
            handshake.begin(self._connect(visit, channel))
        else:
            channel.close()

    async def _connect(self, visit: Visit, channel: socket.socket) -> None:
        loop, protocol = asyncio.get_running_loop(), self._make(visit)
        transport: asyncio.Transport | None = None
        try:
            if self._context is None:
                await loop.connect_accepted_socket(lambda: protocol, channel)
                return
            done = loop.create_future()
            tls = Tls(loop, protocol, self._context, done, server_side=True)
            gate = HandshakeGate(self._table.budget, visit.peer, tls, done)
            transport, _ = await loop.connect_accepted_socket(lambda: gate, channel)
            await done
        except OSError:  # errors of TLS and time-outs among them
            visit.refuse("TLS handshake" if self._context else "not connected")
            protocol.abandon()
            channel.close()
        except asyncio.CancelledError:  # by the table, which has counted it
            protocol.abandon()
            if transport is not None:
                transport.abort()
            raise


@cache
def _written(problem: Problem) -> bytes:
    """Return a problem as the whole response of a connection that ends."""
    status, code, detail, remedy = problem
    response = problem_response(status, code, detail, remedy=remedy)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"connection: close", b"", bytes(response.body)])
