"""Store the record of each run and the summary of each job, in the background.

A job is recorded a moment after its start and summarized after its end, and again when records of
it arrive late. What a weaver leaves undone, the next one does.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torchloom import accounts, settings
from torchloom.specs.states import JobState
from torchloom.weaver.events import BackgroundTasks, JobChanged, RankEventReported, RecordsStored
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import WORLD_SIZE, JobRegistry
from torchloom.weaver.runs import provenance
from torchloom.weaver.runs.provenance import ProvenanceRequest
from torchloom.weaver.runs.summary import (
    GOALS,
    facts_of,
    is_due,
    project_of,
    summary_of,
    summary_without_run,
)
from torchloom.weaver.store import PlaneStore
from torchloom.weaver.store.rows import Fact, JobRow, RunRow, SubmissionRow

AFTER = 0.5  # seconds after a start, in which its ranks have the machine to themselves
_TOGETHER = 0.3  # seconds in which the last records of a job are collected
_APART = 0.02  # seconds between two of the tasks that an earlier weaver left
_AT_ONCE = 256  # summaries of one transaction
_GOALS_MOST = 200  # metrics of a run whose goal is kept
_LONGEST = 200  # letters of a name
_TAGS = 50
_NOTES = 10_000  # letters
_log = logging.getLogger(__name__)

Key = tuple[str, str]


class Experiments:
    """Records and summarizes jobs one after the other, in a thread of its own."""

    def __init__(
        self,
        store: PlaneStore,
        jobs: JobRegistry,
        roster: Roster,
        devices: DeviceMap,
        host: str,
        tasks: BackgroundTasks,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._roster = roster
        self._devices = devices
        self._host = host
        self._background = tasks
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "experiments")
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: set[str] = set()  # runs whose record is stored or under way
        self._is_closed = False
        self._named: set[str] = set()  # jobs whose program has reported a project
        self._unrun: list[str] = []  # jobs that ended without a run, and have no summary yet
        self._acts = {"record": self._record, "sum": self._sum_up, "unrun": self._sum_up_unrun}
        self._takes = {"init": self._init, "metric": self._metric, "labels": self._label}

    def start(self) -> None:
        """Find what an earlier weaver left undone."""
        for number, job in enumerate(self._jobs.all()):
            self._consider(job, number * _APART)

    def on_job_changed(self, changed: JobChanged) -> None:
        """Record or summarize the run of a job that has started or ended."""
        self._consider(changed.job, 0.0)

    def on_rank_event(self, reported: RankEventReported) -> None:
        """Store the project, goals, tags or notes that a program reports of its run."""
        job, event = self._jobs.get(reported.rank.job), reported.event
        if job is not None and (take := self._takes.get(event.kind)) is not None:
            take(job, event.facts)

    def _init(self, job: JobRow, facts: Mapping[str, Any]) -> None:
        project = facts.get("project")
        if isinstance(project, str) and project and job.id not in self._named:
            self._named.add(job.id)
            self._put_brief(job, {"project": project}, wins=False)

    def _metric(self, job: JobRow, facts: Mapping[str, Any]) -> None:
        """Store whether a metric is to be minimized or maximized."""
        name, goal = facts.get("name"), facts.get("goal")
        run = self._store.state.one(RunRow, id=job.run_id)
        goals = dict(run.config.get(GOALS) or {}) if run else {}
        if isinstance(name, str) and goal in ("min", "max") and len(goals) < _GOALS_MOST:
            self._put_brief(job, {GOALS: {**goals, name[:_LONGEST]: goal}}, wins=True)

    def _label(self, job: JobRow, facts: Mapping[str, Any]) -> None:
        """Store the tags and notes of the program; the tags of the spec stay."""
        found: dict[str, Any] = {}
        if isinstance(tags := facts.get("tags"), list):
            row = self._store.state.one(SubmissionRow, job=job.id)
            given = (row.spec.get("tags") or ()) if row else ()
            sent = [str(tag)[:_LONGEST] for tag in tags[:_TAGS]]
            found["tags"] = list(dict.fromkeys([*given, *sent]))
        if isinstance(notes := facts.get("notes"), str):
            found["notes"] = notes[:_NOTES]
        run = self._store.state.one(RunRow, id=job.run_id)
        if run is not None and found and (config := {**run.config, **found}) != run.config:
            self._store.state.put(replace(run, config=config))

    def on_records_stored(self, stored: RecordsStored) -> None:
        """Summarize an ended job again: its summary lacks the records that came late."""
        known = self._jobs.get(stored.job)
        if known is not None and JobState(known.state).is_final:
            self._soon(("sum", stored.job), _TOGETHER)

    async def close(self) -> None:
        """Cancel what is not done; the next weaver finds it."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(functools.partial(self._thread.shutdown, cancel_futures=True))

    def _consider(self, job: JobRow, delay: float) -> None:
        if job.run_id not in self._known and job.state == JobState.RUNNING:
            self._known.add(job.run_id)
            self._soon(("record", job.id), delay + AFTER)
        if is_due(job) and job.started_at is None:
            self._unrun.append(job.id)
            self._soon(("unrun", ""), delay + _TOGETHER)
        elif is_due(job):
            self._soon(("sum", job.id), delay + _TOGETHER)

    def _soon(self, key: Key, delay: float) -> None:
        if key not in self._timers and not self._is_closed:
            self._timers[key] = self._loop.call_later(delay, self._begin, key)

    def _begin(self, key: Key) -> None:
        del self._timers[key]
        act, job = key
        task = self._background.start(self._acts[act](job), f"{act} {job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is None or self._store.state.one(Fact, name=provenance.FACT + job.run_id):
            return
        record = await self._aside(_recorded, job.account, self._wanted(job))
        if record is not None and self._jobs.get(name) is not None:
            self._keep(job, record)

    async def _sum_up(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is None or not JobState(job.state).is_final:
            return  # it runs again
        store = self._store
        summary = await self._aside(summary_of, store.state, store.records, job)
        project = await self._aside(project_of, store.records, job.id)
        now = self._jobs.get(name)
        if summary is None or now is None or now.ended_at != job.ended_at:
            return
        self._jobs.mark(name, facts_of(job, summary))
        await self._complete(now, project or "")

    async def _sum_up_unrun(self, _: str) -> None:
        """Summarize jobs that left the queue without a run, many in one transaction."""
        while self._unrun:
            names, self._unrun = self._unrun[:_AT_ONCE], self._unrun[_AT_ONCE:]
            with self._store.state.together():
                for name in names:
                    job = self._jobs.get(name)
                    if job is not None and is_due(job):
                        self._jobs.mark(name, facts_of(job, summary_without_run(job)))
            await asyncio.sleep(0)

    async def _complete(self, job: JobRow, project: str) -> None:
        """Complete a record by what is known since all ranks have registered."""
        fact = self._store.state.one(Fact, name=provenance.FACT + job.run_id)
        if fact is not None:
            asked = (fact.value, self._wanted(job))
            record = await self._aside(accounts.within, job.account, provenance.completed, *asked)
            if self._jobs.get(job.id) is None:
                return  # it has been removed meanwhile
            if record is not None and record != fact.value:
                self._store.state.put(Fact(fact.name, record))
        if project:
            self._put_brief(job, {"project": project}, wins=False)

    def _keep(self, job: JobRow, record: dict[str, Any]) -> None:
        with self._store.state.together():
            self._store.state.put(Fact(provenance.FACT + job.run_id, record))
            run, found = self._store.state.one(RunRow, id=job.run_id), provenance.brief(record)
            stored = run.config.get("tags") or () if run else ()
            found["tags"] = list(dict.fromkeys([*found["tags"], *stored]))
            self._put_brief(job, found, wins=True)

    def _put_brief(self, job: JobRow, found: dict[str, Any], wins: bool) -> None:
        """Add to the fields that lists show of a run."""
        state = self._store.state
        run = state.one(RunRow, id=job.run_id)
        run = run or RunRow(job.run_id, job.id, job.name, created_at=job.created_at)
        first, second = (run.config, found) if wins else (found, run.config)
        merged = {**found, **run.config, **_set_fields(first), **_set_fields(second)}
        if merged != run.config:
            state.put(replace(run, config=merged))

    def _wanted(self, job: JobRow) -> ProvenanceRequest:
        ranks = tuple(self._roster.ranks(job.id))
        submitted = self._store.state.one(SubmissionRow, job=job.id)
        return ProvenanceRequest(
            job=job.id,
            run=job.run_id,
            host=self._host,
            world_size=len(ranks) or job.facts.get(WORLD_SIZE),
            ranks=ranks,
            devices=tuple(self._devices.all()),
            spec=submitted.spec if submitted else None,
            env=settings.environment(),
        )

    async def _aside(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a call in the thread; none, and a line in the log, if it fails."""
        return await self._loop.run_in_executor(self._thread, _attempt, act, args)


def _attempt(act: Callable[..., Any], args: Iterable[Any]) -> Any:
    try:
        return act(*args)
    except Exception:  # a job's files may hold anything; that must not end the weaver
        _log.exception("%s failed", act.__name__)
        return None


def _set_fields(found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set: the program may name what the spec leaves out."""
    return {name: value for name, value in found.items() if value not in ("", [], None)}


def _recorded(account: str, wanted: ProvenanceRequest) -> dict[str, Any]:
    if not account:
        return provenance.recorded(wanted)
    from torchloom.weaver import account_runs  # most planes have none

    return account_runs.recorded(account, wanted)
