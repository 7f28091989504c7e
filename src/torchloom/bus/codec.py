"""Encode and decode messages; bytes that are not one of ours are refused here and counted."""

import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

from torchloom.messages.plane import VERSION, Message

LONGEST = 1 << 20  # bytes of a message on the bus: what a NATS server takes by default
LONGEST_FRAME = LONGEST - (1 << 12)  # of one from a rank, so that it fits into a batch as a record

_LENGTH = struct.Struct("!I")
_ENCODER = msgspec.msgpack.Encoder()

M = TypeVar("M", bound=Message)


class Garbled(Exception):
    """These bytes are not a message of an expected kind; `why` is a key for counting."""

    def __init__(self, why: str, detail: str = "") -> None:
        self.why = why  # "oversized", "malformed" or "version"
        super().__init__(f"{why}: {detail}" if detail else why)


def encode(message: Message) -> bytes:
    """Return the message as it travels."""
    return _ENCODER.encode(message)


@overload
def decode(data: bytes, kinds: type[M]) -> M: ...
@overload
def decode(data: bytes, kinds: UnionType) -> Message: ...
def decode(data: bytes, kinds: Any) -> Message:
    """Return the message, one of these kinds; all else raises Garbled."""
    if len(data) > LONGEST:
        raise Garbled("oversized", f"{len(data)} bytes")
    try:
        message = cast(Message, _decoder(kinds).decode(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Garbled("malformed", str(error)) from error
    if message.head.version != VERSION:
        raise Garbled("version", f"{message.head.version}, this is {VERSION}")
    return message


def frame(message: Message) -> bytes:
    """Return the message as it travels over a stream, preceded by its length."""
    data = encode(message)
    return _LENGTH.pack(len(data)) + data


class MessageReader(Generic[M]):
    """Decode messages, and count by reason those that are dropped.

    Receivers that know more than the codec count their own reasons (a foreign job, an old
    generation, an old epoch) with `drop`.
    """

    def __init__(self, kinds: Any, dropped: Counter[str] | None = None) -> None:
        self._kinds = kinds
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def read(self, data: bytes) -> M | None:
        """Return the message, or None: then it is counted."""
        try:
            return cast(M, decode(data, self._kinds))
        except Garbled as error:
            self.drop(error.why)
            return None

    def drop(self, why: str) -> None:
        """Count a message that was well formed and is dropped all the same."""
        self.dropped[why] += 1


class Frames:
    """Split a stream of bytes into frames; one that is too long is skipped and counted."""

    def __init__(self, dropped: Counter[str] | None = None, longest: int = LONGEST_FRAME) -> None:
        self.dropped: Counter[str] = Counter() if dropped is None else dropped
        self._longest = longest
        self._received = bytearray()
        self._skipping = 0  # bytes left of a frame that is skipped

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add data and yield every frame that is complete now."""
        self._received += data
        while True:
            self._skip()
            if self._skipping or len(self._received) < _LENGTH.size:
                return
            (length,) = _LENGTH.unpack_from(self._received)
            if length > self._longest:
                self.dropped["oversized"] += 1
                self._skipping = _LENGTH.size + length
                continue
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            whole = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield whole

    def _skip(self) -> None:
        skipped = min(self._skipping, len(self._received))
        del self._received[:skipped]
        self._skipping -= skipped


@cache
def _decoder(kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kinds)
