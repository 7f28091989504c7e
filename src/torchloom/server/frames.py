"""WebSocket frames made once and written to many sockets as they are.

An ASGI server frames every message for every client anew; whoever tells two hundred clients the
same pays for it two hundred times. Here bytes are made once and handed to each transport.
"""

import struct
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

EXTENSION: Final = "torchloom.frames"  # where a WebSocket's scope has its protocol
_TEXT = 0x81  # a whole message of text
_GRACE = 5.0  # seconds for a client that is let go to read what it was sent before


def text_frame(text: bytes) -> bytes:
    """Return UTF-8 text as one frame of a server: whole, neither masked nor compressed."""
    length = len(text)
    if length < 126:
        return bytes((_TEXT, length)) + text
    if length < 1 << 16:
        return struct.pack("!BBH", _TEXT, 126, length) + text
    return struct.pack("!BBQ", _TEXT, 127, length) + text


class FramedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which lets the app write frames of its own making."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self

    @property
    def waiting(self) -> int:
        """Return how many bytes the client has not taken yet, beyond what the kernel holds."""
        return self.transport.get_write_buffer_size()

    @property
    def is_open(self) -> bool:
        return not (self.close_sent or self.disconnected or self.transport.is_closing())

    def write_frames(self, frames: bytes) -> None:
        """Have whole frames sent; nobody waits for a client that does not read."""
        if self.is_open:
            self.transport.write(frames)

    def drop(self, code: int, reason: str) -> None:
        """Let the client go: it hears why if it reads on within some seconds."""
        if not self.is_open:
            return
        self.stop_keepalive()
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_GRACE, self.transport.abort)
