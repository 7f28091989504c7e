"""Send messages to clients: as ready frames, or through the framework."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from starlette.websockets import WebSocket

from torchloom.server.stream.frames import (
    EXTENSION,
    FramedProtocol,
    close_reason,
    framed_text,
    joined,
)
from torchloom.server.stream.payloads import StreamPayload

TOO_SLOW: Final = 1013  # "try again later"
WAITING = 1 << 20  # bytes that a client may leave unread before it is dropped
_PATIENCE = 30.0  # seconds for a client to take some of what it has asked for itself
_REASON = "too slow: more than 1 MiB is unread; connect again with after=the last cursor"


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A payload with its cursor, as a frame of text."""

    draft: StreamPayload
    frame: bytes

    @property
    def text(self) -> bytes:
        return framed_text(self.frame)


class Packet:
    """Messages to many clients, joined once for all of them, or to one."""

    def __init__(self, messages: Sequence[EncodedMessage], is_shared: bool = False) -> None:
        self.messages = messages
        self._is_shared = is_shared

    @cached_property
    def frames(self) -> list[bytes]:
        """Return pieces of whole frames, to which the queues of clients refer."""
        frames = [message.frame for message in self.messages]
        return joined(frames) if self._is_shared else frames

    @cached_property
    def size(self) -> int:
        return sum(len(message.frame) for message in self.messages)


class ClientSender(Protocol):
    """One client. `send` never waits; a caller with much to send awaits `drained`."""

    @property
    def is_open(self) -> bool: ...
    @property
    def is_drained(self) -> bool: ...
    def send(self, packet: Packet) -> None: ...
    def drop(self, code: int, reason: str) -> None: ...
    async def drained(self) -> None: ...


def sender_of(websocket: WebSocket) -> ClientSender:
    """Return the sender for a client, with ready frames where the protocol takes them."""
    protocol = websocket.scope.get("extensions", {}).get(EXTENSION)
    return FramedSender(protocol) if protocol is not None else QueuedSender(websocket)


class FramedSender:
    """Write the same bytes to each client."""

    def __init__(self, protocol: FramedProtocol) -> None:
        self._protocol = protocol

    @property
    def is_open(self) -> bool:
        return self._protocol.is_open

    @property
    def is_drained(self) -> bool:
        return self._protocol.drained.is_set()

    def send(self, packet: Packet) -> None:
        if self._protocol.waiting > WAITING:
            self.drop(TOO_SLOW, _REASON)
        else:
            self._protocol.write_frames(packet.frames)

    def drop(self, code: int, reason: str) -> None:
        self._protocol.drop(code, reason)

    async def drained(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._protocol.drained.wait()
        except TimeoutError:
            self.drop(TOO_SLOW, _REASON)


class QueuedSender:
    """Send through the framework, from a queue of a bounded number of bytes."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._queue: asyncio.Queue[Packet | tuple[int, str]] = asyncio.Queue()
        self._waiting = 0
        self._room = asyncio.Event()  # little waits
        self._room.set()
        self._task = asyncio.create_task(self._run(), name="sender")
        self.is_open = True

    @property
    def is_drained(self) -> bool:
        return self._room.is_set()

    def send(self, packet: Packet) -> None:
        if not self.is_open:
            return
        if self._waiting > WAITING:
            self.drop(TOO_SLOW, _REASON)
            return
        self._waiting += packet.size
        if self._waiting > WAITING // 4:
            self._room.clear()
        self._queue.put_nowait(packet)

    def drop(self, code: int, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._queue.put_nowait((code, close_reason(reason)))

    async def drained(self) -> None:
        await self._room.wait()

    async def _run(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the client has gone
            while True:
                item = await self._queue.get()
                if isinstance(item, tuple):
                    await self._websocket.close(*item)
                    return
                for message in item.messages:
                    await self._websocket.send_text(message.text.decode())
                self._waiting -= item.size
                if self._waiting <= WAITING // 4:
                    self._room.set()
        self.is_open = False
        self._room.set()
