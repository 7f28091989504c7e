"""The rows of all checkpoints; each change is stored before it is published."""

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
)  # not in a final state
_UNSETTLED = (CheckpointPhase.WRITING, CheckpointPhase.COMMITTING)


class CheckpointRows:
    """Only the weaver writes them, so a row is read once and cached."""

    def __init__(
        self, state: StateStore, journal: Journal, now: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._journal = journal
        self._cache: dict[str, dict[Key, CheckpointRow]] = {}
        self._dirty: dict[tuple[str, Key], CheckpointRow] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        found = state.find(CheckpointRow, state=[str(phase) for phase in _OPEN])
        self._open = {(row.job, row.key): row for row in found}
        self.now = now

    def of(self, job: str) -> list[CheckpointRow]:
        """Return all checkpoints of a job, also removed ones, newest first."""
        return sorted(self._of_job(job).values(), key=lambda row: row.key, reverse=True)

    def get(self, job: str, key: Key) -> CheckpointRow | None:
        return self._of_job(job).get(key)

    def committed(self, job: str) -> list[CheckpointRow]:
        """Return those that a job can resume from, newest first."""
        return [row for row in self.of(job) if row.state == CheckpointPhase.COMMITTED]

    def open(self) -> list[CheckpointRow]:
        """Return those that are not in a final state."""
        return list(self._open.values())

    def keep(self, row: CheckpointRow) -> None:
        """Have a row stored at the next `settle`."""
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
        """Store the rows that wait for it."""
        dirty, self._dirty = list(self._dirty.values()), {}
        self._state.put(*dirty)

    def forget(self, job: str) -> None:
        """Drop a removed job from the cache; the caller removes its rows."""
        self._cache.pop(job, None)
        for whose in [whose for whose in self._open if whose[0] == job]:
            del self._open[whose]

    async def settled(
        self, job: str, step: int, generation: int, patience: float
    ) -> CheckpointRow | None:
        """Wait until the checkpoint of a step is committed or failed; return it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while (found := self._meant(job, step, generation)) is None or (
                    found.state in _UNSETTLED
                ):
                    await self._change(job)
        return self._meant(job, step, generation)

    async def gone(self, row: CheckpointRow, patience: float) -> CheckpointRow:
        """Wait until a checkpoint is removed; return it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._of_job(row.job)[row.key].state == CheckpointPhase.REMOVING:
                    await self._change(row.job)
        return self._of_job(row.job)[row.key]

    def _meant(self, job: str, step: int, generation: int) -> CheckpointRow | None:
        """Return the checkpoint of a step; of several, the committed one."""
        rows = [row for row in self.of(job) if row.step == step]
        fresh = [row for row in rows if row.generation >= generation]
        if fresh and all(row.state == CheckpointPhase.FAILED for row in fresh):
            fresh = rows  # an older generation had committed it already
        done = [row for row in fresh if row.state == CheckpointPhase.COMMITTED]
        return next(iter(done or fresh), None)

    async def _change(self, job: str) -> None:
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bells = self._waiters.setdefault(job, [])
        bells.append(bell)
        try:
            await bell
        finally:
            bells.remove(bell)

    def _take(self, row: CheckpointRow) -> None:
        self._of_job(row.job)[row.key] = row
        if row.state in _OPEN:
            self._open[row.job, row.key] = row
        else:
            self._open.pop((row.job, row.key), None)
        for bell in self._waiters.get(row.job, ()):
            if not bell.done():
                bell.set_result(None)

    def _of_job(self, job: str) -> dict[Key, CheckpointRow]:
        if job not in self._cache:
            self._cache[job] = {row.key: row for row in self._state.find(CheckpointRow, job=job)}
        return self._cache[job]
