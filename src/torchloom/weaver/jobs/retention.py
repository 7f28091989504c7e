"""Remove runs and parts of runs that are due, periodically or on request, one after the other.

Removal may be interrupted: the run's folder is removed first, then its records, and its rows in
`state` last, so that an unfinished removal is found and done again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchloom import accounts
from torchloom.errors import LoomError
from torchloom.launch.records import removal
from torchloom.rules.retention import EndedRun, Removal, RetentionLimits, due
from torchloom.weaver.checkpoints.requests import CheckpointRows
from torchloom.weaver.events import BackgroundTasks, Journal
from torchloom.weaver.jobs.registry import JobRegistry, is_over
from torchloom.weaver.runs import provenance
from torchloom.weaver.store import PlaneStore, StateLost, rows
from torchloom.weaver.store.series.records import RecordRemoval

PERIOD = 600.0  # seconds between two checks
_OF_JOB = (
    rows.CommandRow,
    rows.GuardRow,
    rows.RankProcessRow,
    rows.SubmissionRow,
    rows.Placement,
    rows.CheckpointRow,
    rows.LiveRecoveryRow,
)
_AT_ONCE = 500  # rows of `state` that are removed together
_OURS = "retention"  # the author of what no user requested
_log = logging.getLogger(__name__)


class RunRetention:
    """Finds what is due and removes it; an error in the config file keeps everything."""

    def __init__(
        self,
        store: PlaneStore,
        jobs: JobRegistry,
        journal: Journal,
        checkpoint_rows: CheckpointRows,
        tasks: BackgroundTasks,
        limits: Callable[[], RetentionLimits] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._journal = journal
        self._checkpoint_rows = checkpoint_rows
        self._tasks = tasks
        self._limits = limits or _limits
        self._now = now
        self._done: set[Removal] = set()  # parts that were removed, of runs that stay
        self._alone = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def remove_soon(self) -> None:
        """Remove what is due in the background, unless that is still under way."""
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._remove_due(), "retention")

    async def close(self) -> None:
        """Cancel what is under way; the next weaver continues it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def limits(self) -> RetentionLimits:
        """Return what the config file says now."""
        return await asyncio.to_thread(self._limits)

    async def remove_now(self, job: str, author: str) -> None:
        """Remove a run that has ended, on request."""
        async with self._alone:
            await self._remove_run(job, author)

    async def find(self) -> list[Removal]:
        """Return what is due now."""
        limits = await self.limits()
        if not limits.ages:
            return []
        folders = await asyncio.to_thread(removal.known_runs)
        found = due(limits, self._known(folders), self._now())
        return await asyncio.to_thread(self._present, found)

    async def carry_out(self) -> list[tuple[Removal, tuple[bool, str]]]:
        """Remove what is due; return the outcome of each."""
        async with self._alone:
            return [(one, await self._remove(one)) for one in await self.find()]

    async def _remove_due(self) -> None:
        try:
            for one, (is_done, text) in await self.carry_out():
                if not is_done:
                    _log.warning(
                        "%s of %s is due for removal, but stays: %s", one.what, one.job, text
                    )
        except StateLost:
            raise
        except LoomError as error:
            _log.warning("nothing is removed: %s", error)
        except Exception:  # an odd folder or database must not end the weaver
            _log.exception("what is due for removal cannot be determined")

    def _known(self, folders: list[EndedRun]) -> list[EndedRun]:
        """Return every run; one with a row has ended if its folder and its row agree."""
        by_id = {run.id: run for run in folders}
        tags = {run.job: run.config.get("tags") for run in self._store.state.find(rows.RunRow)}
        for job in self._jobs.all():
            there = by_id.get(job.id)
            over = is_over(job) and (there is None or there.is_over)
            ended = job.ended_at if job.ended_at is not None else job.created_at
            labels = frozenset(map(str, tags.get(job.id) or ()))
            parent = there.parent if there else ""
            by_id[job.id] = EndedRun(job.id, over, ended, job.name, labels, parent)
        return list(by_id.values())

    def _present(self, found: list[Removal]) -> list[Removal]:
        """Return what is due and not removed yet; a run with a row is not."""
        with contextlib.closing(RecordRemoval(self._store.place)) as records:
            there = [one for one in found if one not in self._done and self._is_there(one, records)]
        self._done.update(one for one in found if one.what != "run" and one not in there)
        return there

    def _is_there(self, one: Removal, records: RecordRemoval) -> bool:
        match one.what:
            case "metrics":
                return records.has_points(one.job)
            case "dumps":
                return self._within(removal.is_there, one) or bool(self._verdicts(one.job))
            case "run":
                return self._within(removal.is_there, one) or self._jobs.get(one.job) is not None
        return self._within(removal.is_there, one)

    def _within(self, act: Callable[[Any], bool], one: Any) -> bool:
        """Check or remove files of a run, as the account that it ran as."""
        job = one.job if isinstance(one, Removal) else one
        return accounts.within(self._jobs.account(job), act, one)

    def _verdicts(self, job: str) -> list[rows.EventRow]:
        """Return the verdicts on a job that have stacks."""
        found, after = list[rows.EventRow](), 0
        while events := self._store.state.happened(job, after, _AT_ONCE):
            after = events[-1].seq
            found += (one for one in events if one.kind == "verdict" and one.facts.get("stacks"))
        return found

    async def _remove(self, one: Removal) -> tuple[bool, str]:
        try:
            if one.what == "run":
                await self._remove_run(one.job)
            else:
                await self._remove_part(one)
                self._done.add(one)
        except StateLost:
            raise
        except LoomError as error:
            return False, str(error)
        except Exception as error:  # of the records' drivers, which share no class
            _log.exception("%s of %s could not be removed", one.what, one.job)
            return False, str(error)
        return True, "removed"

    async def _remove_part(self, one: Removal) -> None:
        match one.what:
            case "metrics":
                await asyncio.to_thread(self._forget, one.job, whole=False)
            case "logs":
                await asyncio.to_thread(self._within, removal.remove_logs, one.job)
            case "dumps":
                await asyncio.to_thread(self._within, removal.remove_dumps, one.job)
                for event in self._verdicts(one.job):  # the verdict stays
                    self._store.state.put(replace(event, facts={**event.facts, "stacks": []}))

    async def _remove_run(self, job: str, author: str = _OURS) -> None:
        await asyncio.to_thread(self._within, removal.remove_run, job)
        known = self._jobs.get(job)
        if known is not None and not is_over(known):
            return  # it was resumed meanwhile; its folder was left for the same reason
        await asyncio.to_thread(self._forget, job, whole=True)
        if known is not None:
            await self._remove_rows(known, author)

    async def _remove_rows(self, job: rows.JobRow, author: str) -> None:
        """Remove the rows of a job from `state`, the most numerous first; one event stays."""
        state = self._store.state
        while events := state.happened(job.id, limit=_AT_ONCE):
            state.remove(rows.EventRow, seq=[event.seq for event in events])
            await asyncio.sleep(0)
        commands = [command.id for command in state.find(rows.CommandRow, job=job.id)]
        for at in range(0, len(commands), _AT_ONCE):
            state.remove(rows.CommandAck, command=commands[at : at + _AT_ONCE])
            await asyncio.sleep(0)
        saved = state.find(rows.CheckpointRow, job=job.id, state="committed")
        with state.together():
            for kind in _OF_JOB:
                state.remove(kind, job=job.id)
            state.remove(rows.Fact, name=provenance.FACT + job.run_id)
            self._jobs.forget(job.id)
            words = {"job": job.id, "name": job.name, "owner": job.owner, "ended_at": job.ended_at}
            facts = {**words, "checkpoints": [row.path or row.place for row in saved]}
            self._journal.note("run_removed", author=author, facts=facts)
        self._checkpoint_rows.forget(job.id)

    def _forget(self, job: str, whole: bool) -> None:
        with contextlib.closing(RecordRemoval(self._store.place)) as records:
            if whole:
                records.job(job)
            else:
                records.points(job)


def _limits() -> RetentionLimits:
    from torchloom.runner import retention

    return retention.limits()
