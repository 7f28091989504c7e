"""WebSocket frames made once and written to many sockets as they are; limits of what comes in.

An ASGI server frames every message again for every client. Here the bytes of a frame are made
once, and every client's queue refers to them. A transport gets few of them at a time: what it has
cannot be taken back from a client that does not read.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from torchloom.server.security.limits import Visit

EXTENSION: Final = "torchloom.frames"  # where a WebSocket's scope has its protocol
_TEXT = 0x81  # a whole message of text
_PIECE = 4 << 10  # bytes that are parsed in one turn of the event loop
_WRITTEN = 16 << 10  # bytes of frames that are handed to a transport together
_HIGH_WATER = 64 << 10  # bytes that a transport keeps before it takes no more
_FRAGMENTS = 64  # of one message
_UNREAD = 1 << 20  # bytes that a client who sends pings may leave unread
_TOO_BIG, _TOO_SLOW = 1009, 1013  # codes of a close
_REFUSED = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_NOT_TEXT = 1007
_LONGEST_REASON = 123  # bytes
_SEND_BUFFER = 1 << 17  # bytes, of which Linux makes twice as many
_GRACE = 5.0  # seconds for a dropped client to read what it was sent before
_log = logging.getLogger(__name__)


def text_frame(text: bytes) -> bytes:
    """Return UTF-8 text as one frame of a server: whole, neither masked nor compressed."""
    length = len(text)
    if length < 126:
        return bytes((_TEXT, length)) + text
    if length < 1 << 16:
        return struct.pack("!BBH", _TEXT, 126, length) + text
    return struct.pack("!BBQ", _TEXT, 127, length) + text


def framed_text(frame: bytes) -> bytes:
    """Return the text of a frame that was made here."""
    return frame[{126: 4, 127: 10}.get(frame[1], 2) :]


def joined(frames: Iterable[bytes]) -> list[bytes]:
    """Return frames joined to pieces of some kilobytes."""
    queue, pieces = deque(frames), []
    while queue:
        pieces.append(_next_piece(queue))
    return pieces


def _next_piece(frames: deque[bytes]) -> bytes:
    """Take frames that are written together; a large one is neither joined nor copied."""
    parts = [frames.popleft()]
    size = len(parts[0])
    while frames and size + len(frames[0]) <= _WRITTEN:
        parts.append(frames.popleft())
        size += len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def close_reason(text: str) -> str:
    """Return as much of a text as a frame that closes may carry: bytes are counted, not letters."""
    return text.encode(errors="replace")[:_LONGEST_REASON].decode(errors="ignore")


class FramedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which lets the app write frames of its own making.

    What a client sends is parsed in small pieces, a piece a turn of the event loop; while some of
    it waits, no more is read. A client that sends before it is accepted is dropped.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _log  # uvicorn's lines about a WebSocket have its query string
        self._visit: Visit | None = None
        self._unparsed = b""
        self._is_due = False  # a piece will be parsed in the loop's next turn
        self._unwritten: deque[bytes] = deque()  # whole frames, which other clients have as well
        self._unwritten_size = 0
        self.drained = asyncio.Event()  # nothing waits, and the transport takes more
        self.drained.set()

    def visited_by(self, visit: Visit, seconds: float) -> None:
        """Take over a connection, which must be accepted within some seconds."""
        channel = self.transport.get_extra_info("socket")
        if channel is not None:  # else the kernel takes megabytes for a client that does not read
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._visit = visit
        visit.pass_on(self.transport, self.transport.abort)
        visit.wait(seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._visit is not None:
            self._visit.leave()
        self._unparsed = b""
        self._forget_unwritten()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept" and self._visit is not None:
            self._visit.serve()

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()  # a client waits for the answer to its request
            return
        self._unparsed += data
        if not self._is_due:
            self._parse_piece()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._unparsed and not self.read_paused:
            self.transport.pause_reading()
            self._parse_later()
        return message

    def _parse_piece(self) -> None:
        """Parse some of the received bytes; the rest waits for a later turn of the loop."""
        self._is_due = False
        piece, self._unparsed = self._unparsed[:_PIECE], self._unparsed[_PIECE:]
        super().data_received(piece)
        if self.transport.is_closing():
            return
        if self._unparsed:
            self.transport.pause_reading()
            if not self.read_paused:
                self._parse_later()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _parse_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._parse_due)

    def _parse_due(self) -> None:
        if self._is_due and not self.transport.is_closing():
            self._parse_piece()

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > _FRAGMENTS:
            self.frames = []
            self.drop(_TOO_BIG, "a message has too many fragments")

    def handle_ping(self) -> None:
        if self.is_open and self.waiting <= _UNREAD:
            super().handle_ping()
            return
        self.conn.data_to_send()  # takes the pong, which is not sent
        self.drop(_TOO_SLOW, "too slow: pongs are not read")

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(_GRACE, self.transport.abort)  # perhaps it reads nothing at all

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self

    def handle_events(self) -> None:
        """Refuse a handshake that cannot be read: the parser only keeps why, and stays silent."""
        super().handle_events()
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            self.transport.write(_REFUSED)
            self.transport.close()

    def send_receive_event_to_app(self) -> None:
        """Drop a client whose text is not UTF-8, without a traceback in the log."""
        if self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self.frames = []
            self.drop(_NOT_TEXT, "text must be UTF-8")
            return
        super().send_receive_event_to_app()

    @property
    def waiting(self) -> int:
        """Return how many bytes the client has not taken yet, beyond what the kernel holds."""
        return self.transport.get_write_buffer_size() + self._unwritten_size

    @property
    def is_open(self) -> bool:
        return not (self.close_sent or self.disconnected or self.transport.is_closing())

    def write_frames(self, pieces: Sequence[bytes]) -> None:
        """Queue pieces of whole frames; this never waits for a client that does not read."""
        if self.is_open:
            self._unwritten.extend(pieces)
            self._unwritten_size += sum(map(len, pieces))
            self._write_some()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.drained.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_some()

    def _write_some(self) -> None:
        """Hand over as much as the transport takes."""
        while self._unwritten and self.writable.is_set() and self.is_open:
            piece = _next_piece(self._unwritten)
            self._unwritten_size -= len(piece)
            self.transport.write(piece)
        if self._unwritten or not self.writable.is_set():
            self.drained.clear()
        else:
            self.drained.set()

    def _forget_unwritten(self) -> None:
        self._unwritten.clear()
        self._unwritten_size = 0
        self.drained.set()

    def drop(self, code: int, reason: str) -> None:
        """Drop the client: it receives the reason if it reads within some seconds.

        What was not written yet it can request again by its last cursor.
        """
        if not self.is_open:
            return
        self._forget_unwritten()
        self.stop_keepalive()
        self.conn.send_close(code, close_reason(reason))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_GRACE, self.transport.abort)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
