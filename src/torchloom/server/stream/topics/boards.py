"""Things that are whole at every moment (a list, a job): read once for all who look at them."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from torchloom.errors import LoomError
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.weaver_link import WeaverAway

Look = Callable[[], Awaitable[Any]]
Key = tuple[str, str]  # a topic and a job


class Board:
    """One thing, looked at now and then while somebody wants to know."""

    def __init__(self, look: Look, interval: float) -> None:
        self._look = look
        self._interval = interval
        self._changed = asyncio.Event()
        self._value: Any = None
        self.version = 0  # none yet
        self.watchers = 0
        self.failing: float | None = None  # since when it could not be read
        self._task = asyncio.create_task(self._run(), name="board")
        self._task.add_done_callback(lambda _: self._changed.set())

    async def changed(self, known: int) -> Any:
        """Return the thing when it is another than the one that is known."""
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
                found = await self._look()
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
    """All boards that somebody looks at, and whether the weaver answers those who read them."""

    def __init__(self, access: PlaneAccess) -> None:
        self.access = access
        self._boards: dict[Key, Board] = {}
        self._away: float | None = None

    async def ask(self, name: str, /, **facts: Any) -> Any:
        """Ask the weaver; whoever looks at boards is told whether it answers."""
        try:
            found = await self.access.link.ask(name, **facts)
        except WeaverAway:
            self._away = self._away or time.monotonic()
            raise
        self._away = None
        return found

    @contextlib.contextmanager
    def watched(self, key: Key, look: Look, interval: float) -> Iterator[Board]:
        """Give the board of this key, for as long as it is looked at."""
        board = self._boards.get(key)
        if board is None:
            board = self._boards[key] = Board(look, interval)
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
        """Tell whether the last question found no weaver."""
        return self._away is not None

    @property
    def behind(self) -> float:
        """Return for how many seconds something could not be read; zero when all is well."""
        moments = [self._away, *(board.failing for board in self._boards.values())]
        failing = [moment for moment in moments if moment is not None]
        return time.monotonic() - min(failing) if failing else 0.0

    def close(self) -> None:
        for board in self._boards.values():
            board.end()
