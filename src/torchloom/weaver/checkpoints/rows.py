"""The checkpoints of every job, as rows: stored before anybody hears of them."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from torchloom.rules.checkpoints import CheckpointPhase
from torchloom.weaver.journal import Journal
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import CheckpointRow

Key = tuple[int, int, int]  # step, generation, attempt
_OPEN = (
    CheckpointPhase.WRITING,
    CheckpointPhase.COMMITTING,
    CheckpointPhase.REMOVING,
)  # something is still to come
_UNSETTLED = (CheckpointPhase.WRITING, CheckpointPhase.COMMITTING)


class CheckpointRows:
    """Only the weaver writes them, so what it has read once it knows by heart."""

    def __init__(
        self, state: StateStore, journal: Journal, now: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._journal = journal
        self._books: dict[str, dict[Key, CheckpointRow]] = {}
        self._dirty: dict[tuple[str, Key], CheckpointRow] = {}
        self._bells: dict[str, list[asyncio.Future[None]]] = {}
        found = state.find(CheckpointRow, state=[str(phase) for phase in _OPEN])
        self._open = {(row.job, row.key): row for row in found}
        self.now = now

    def of(self, job: str) -> list[CheckpointRow]:
        """Return all that a job has or had, the newest first."""
        return sorted(self._book(job).values(), key=lambda row: row.key, reverse=True)

    def get(self, job: str, key: Key) -> CheckpointRow | None:
        return self._book(job).get(key)

    def committed(self, job: str) -> list[CheckpointRow]:
        """Return those that a job can go on from, the newest first."""
        return [row for row in self.of(job) if row.state == CheckpointPhase.COMMITTED]

    def open(self) -> list[CheckpointRow]:
        """Return those of which something is still to come."""
        return list(self._open.values())

    def keep(self, row: CheckpointRow) -> None:
        """Have a row stored before those who keep what it says forget it."""
        self._dirty[row.job, row.key] = row
        self._take(row)

    def put(self, row: CheckpointRow, kind: str = "", **words: Any) -> None:
        """Store a row and, with it, that something happened."""
        self._dirty.pop((row.job, row.key), None)
        with self._state.together():
            self._state.put(row)
            if kind:
                self._journal.note(kind, row.job, step=row.step, **words)
        self._take(row)

    def note(self, row: CheckpointRow, kind: str, **words: Any) -> None:
        """Store that something happened to a checkpoint."""
        self._journal.note(kind, row.job, step=row.step, **words)

    def settle(self) -> None:
        """Store what waits."""
        dirty, self._dirty = list(self._dirty.values()), {}
        self._state.put(*dirty)

    def forget(self, job: str) -> None:
        """Know no more of a job that is removed; its rows are taken out by whoever removes it."""
        self._books.pop(job, None)
        for whose in [whose for whose in self._open if whose[0] == job]:
            del self._open[whose]

    async def settled(
        self, job: str, step: int, generation: int, patience: float
    ) -> CheckpointRow | None:
        """Return the checkpoint of a step when it is committed or failed, else how it stands."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while (found := self._meant(job, step, generation)) is None or (
                    found.state in _UNSETTLED
                ):
                    await self._change(job)
        return self._meant(job, step, generation)

    async def gone(self, row: CheckpointRow, patience: float) -> CheckpointRow:
        """Return a checkpoint that is to go when it has gone, else how it stands."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._book(row.job)[row.key].state == CheckpointPhase.REMOVING:
                    await self._change(row.job)
        return self._book(row.job)[row.key]

    def _meant(self, job: str, step: int, generation: int) -> CheckpointRow | None:
        """Return what has become of a step; of several writings the one that is committed."""
        rows = [row for row in self.of(job) if row.step == step]
        fresh = [row for row in rows if row.generation >= generation]
        if fresh and all(row.state == CheckpointPhase.FAILED for row in fresh):
            fresh = rows  # an older generation had committed it already
        done = [row for row in fresh if row.state == CheckpointPhase.COMMITTED]
        return next(iter(done or fresh), None)

    async def _change(self, job: str) -> None:
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bells = self._bells.setdefault(job, [])
        bells.append(bell)
        try:
            await bell
        finally:
            bells.remove(bell)

    def _take(self, row: CheckpointRow) -> None:
        self._book(row.job)[row.key] = row
        if row.state in _OPEN:
            self._open[row.job, row.key] = row
        else:
            self._open.pop((row.job, row.key), None)
        for bell in self._bells.get(row.job, ()):
            if not bell.done():
                bell.set_result(None)

    def _book(self, job: str) -> dict[Key, CheckpointRow]:
        if job not in self._books:
            self._books[job] = {row.key: row for row in self._state.find(CheckpointRow, job=job)}
        return self._books[job]
