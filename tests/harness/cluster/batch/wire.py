"""Lines of JSON over TCP, and raw bytes behind a line where a task's output follows."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
Address = tuple[str, int]
PATIENCE = 20.0  # seconds for an answer


def connect(address: Address) -> socket.socket:
    """Connect; small messages go out at once."""
    line = socket.create_connection((address[0], address[1]), PATIENCE)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def send(line: socket.socket, message: Message) -> None:
    """Send one message."""
    line.sendall(json.dumps(message).encode() + b"\n")


def receive(line: socket.socket) -> Message | None:
    """Return the next message and leave what follows it on the line; None at the end."""
    parts = []
    while seen := line.recv(1 << 16, socket.MSG_PEEK):
        end = seen.find(b"\n")
        parts.append(line.recv(end + 1 if end >= 0 else len(seen)))
        if end >= 0:
            message: Message = json.loads(b"".join(parts))
            return message
    return None


def messages(line: socket.socket) -> Iterator[Message]:
    """Yield messages until the other side is gone, however it went."""
    with contextlib.suppress(OSError):
        while (message := receive(line)) is not None:
            yield message


def call(address: Address, request: Message) -> Message:
    """Ask once and return the answer."""
    with connect(address) as line:
        send(line, request)
        answer = receive(line)
    if answer is None:
        raise ConnectionError("the daemon hung up")
    return answer
