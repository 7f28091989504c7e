"""A client of the stream, made of the websockets package alone."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from ..harness.server_plane import PATIENCE, Server


class Client:
    """One connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def message(self, timeout: float = PATIENCE) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.socket.recv(timeout))
        return found

    def until(self, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Return messages up to one."""
        found = [self.message()]
        while not is_last(found[-1]):
            found.append(self.message())
        return found


@contextmanager
def listening(
    server: Server, path: str, token: str | None = None, **words: Any
) -> Iterator[Client]:
    """Open a stream."""
    token = server.plane.token() if token is None else token
    headers = {"Authorization": f"Bearer {token}"}
    url = server.url.replace("http", "ws", 1) + path
    with connect(url, additional_headers=headers, open_timeout=PATIENCE, **words) as socket:
        yield Client(socket)
