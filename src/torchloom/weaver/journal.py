"""What happened, stored first and told to whoever watches after."""

import asyncio
import time
from collections.abc import Callable

from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import EventRow, Json


class Journal:
    """Append to the events of `state`. Watchers are only woken: they read on from their cursor."""

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
        """Store that something happened."""
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
        """Have watchers look for what is new."""
        for woken in self._woken:
            woken.set()

    def watch(self) -> "JournalWatch":
        """Return a watch on what is new; it is to be closed."""
        return JournalWatch(self._woken)


class JournalWatch:
    """One watcher's bell."""

    def __init__(self, woken: set[asyncio.Event]) -> None:
        self._all = woken
        self._bell = asyncio.Event()
        woken.add(self._bell)

    async def news(self) -> None:
        """Come back when there may be something new since the last time."""
        await self._bell.wait()
        self._bell.clear()

    def close(self) -> None:
        self._all.discard(self._bell)
