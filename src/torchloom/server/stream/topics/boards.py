"""Values that are polled once for all pages that show them, such as the list of jobs."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from torchloom.errors import LoomError
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.weaver_link import WeaverAway

Read = Callable[[], Awaitable[Any]]
Key = tuple[str, str]  # a topic and a job


class Board:
    """One value, polled at an interval while a page shows it."""

    def __init__(self, read: Read, interval: float) -> None:
        self._read = read
        self._interval = interval
        self._changed = asyncio.Event()
        self._value: Any = None
        self.version = 0  # none yet
        self.watchers = 0
        self.failing: float | None = None  # since when it could not be read
        self._task = asyncio.create_task(self._run(), name="board")
        self._task.add_done_callback(lambda _: self._changed.set())

    async def changed(self, known: int) -> Any:
        """Wait for a version newer than the known one, and return its value."""
        while self.version <= known:
            if self._task.done():
                self._task.result()
            await self._changed.wait()
        return self._value

    def end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                found = await self._read()
            except LoomError:  # a database is away, or busy: it is tried again
                self.failing = self.failing or time.monotonic()
            else:
                self.failing = None
                self._take(found)
            await asyncio.sleep(self._interval)

    def _take(self, found: Any) -> None:
        if self.version == 0 or found != self._value:
            self._value, self.version = found, self.version + 1
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()


class Boards:
    """All boards in use, and whether the weaver answers their requests."""

    def __init__(self, access: PlaneAccess) -> None:
        self.access = access
        self._boards: dict[Key, Board] = {}
        self._away: float | None = None

    async def ask(self, name: str, /, **facts: Any) -> Any:
        """Send a request to the weaver, and record whether it answers."""
        try:
            found = await self.access.link.ask(name, **facts)
        except WeaverAway:
            self._away = self._away or time.monotonic()
            raise
        self._away = None
        return found

    @contextlib.contextmanager
    def watched(self, key: Key, read: Read, interval: float) -> Iterator[Board]:
        """Provide the board of a key while it is shown."""
        board = self._boards.get(key)
        if board is None:
            board = self._boards[key] = Board(read, interval)
        board.watchers += 1
        try:
            yield board
        finally:
            board.watchers -= 1
            if not board.watchers:
                board.end()
                del self._boards[key]

    @property
    def is_alone(self) -> bool:
        """Return whether the last request found no weaver."""
        return self._away is not None

    @property
    def behind(self) -> float:
        """Return for how many seconds something could not be read; zero when all reads succeed."""
        moments = [self._away, *(board.failing for board in self._boards.values())]
        failing = [moment for moment in moments if moment is not None]
        return time.monotonic() - min(failing) if failing else 0.0

    def close(self) -> None:
        for board in self._boards.values():
            board.end()
