"""Hear which runs have news: launch processes say so with a datagram, and wait for nothing."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from torchloom.launch.records import record_writer
from torchloom.unix import reachable

_LONGEST = 1024  # bytes of a run's id, and more


class Pokes:
    """A datagram socket for this user; what comes there is an id, or nothing that we know."""

    def __init__(self, folder: Path, on_news: Callable[[str], None]) -> None:
        self._path = folder / record_writer.POKES
        self._on_news = on_news
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def open(self) -> None:
        """Begin to hear; a socket that a dead weaver left is replaced."""
        self._path.unlink(missing_ok=True)
        with reachable(self._path) as address:
            self._socket.bind(address)
        self._path.chmod(0o600)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def close(self) -> None:
        """Hear no more."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _hear(self) -> None:
        """Take all that waits; several words about one run are one look at it."""
        runs: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                runs[self._socket.recv(_LONGEST).decode(errors="replace")] = None
        for app_id in runs:
            self._on_news(app_id)
