"""The events of `state`: stored, then published to watchers."""

import asyncio
import time
from collections.abc import Callable

from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import EventRow, Json


class Journal:
    """Appends events. Watchers are only woken; they read from their cursor."""

    def __init__(self, state: StateStore, now: Callable[[], float] = time.time) -> None:
        self._state = state
        self._now = now
        self._woken: set[asyncio.Event] = set()

    def note(
        self,
        kind: str,
        job: str = "",
        *,
        rank: int = -1,
        step: int | None = None,
        author: str = "",
        reason: str = "",
        facts: Json = None,
    ) -> None:
        """Store an event."""
        entry = EventRow(
            time=self._now(),
            job=job,
            kind=kind,
            rank=rank,
            step=step,
            author=author,
            reason=reason,
            facts=facts or {},
        )
        self._state.note(entry)
        self.wake()

    def wake(self) -> None:
        """Have watchers read new events."""
        for woken in self._woken:
            woken.set()

    def watch(self) -> "JournalWatch":
        """Return a watch on new events; the caller closes it."""
        return JournalWatch(self._woken)


class JournalWatch:
    """Wakes one watcher."""

    def __init__(self, woken: set[asyncio.Event]) -> None:
        self._all = woken
        self._event = asyncio.Event()
        woken.add(self._event)

    async def news(self) -> None:
        """Wait for events since the last call."""
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        self._all.discard(self._event)
