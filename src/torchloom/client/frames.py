"""Messages to and from a plane: JSON in frames over a unix socket, one after the other."""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

HEADER = struct.Struct("!IH")  # bytes of JSON; descriptors that belong to them: here none
_LONGEST = 1 << 26  # bytes of a message; whoever announces more is no plane


def say(channel: "socket.socket", message: Mapping[str, Any]) -> None:
    """Send one message and wait until it is on its way."""
    import json

    text = json.dumps(message).encode()
    channel.sendall(HEADER.pack(len(text), 0) + text)


def hear(channel: "socket.socket") -> dict[str, Any] | None:
    """Wait for one message; nothing when the other end hung up before it began."""
    import json

    head = _exactly(channel, HEADER.size)
    if not head:
        return None
    length, _ = HEADER.unpack(head)
    if length > _LONGEST:
        raise ConnectionError("what answers is no plane")
    message = json.loads(_exactly(channel, length) or b"null")
    if not isinstance(message, dict):
        raise ConnectionError("it hung up in the middle of a message")
    return message


def _exactly(channel: "socket.socket", length: int) -> bytes:
    """Return so many bytes; none when there are none at all."""
    data = b""
    while len(data) < length:
        more = channel.recv(min(length - len(data), 1 << 20))
        if not more and data:
            raise ConnectionError("it hung up in the middle of a message")
        if not more:
            return b""
        data += more
    return data
