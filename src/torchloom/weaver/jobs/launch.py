"""Start and stop the runs of jobs: the interface `Launcher`, its runner, and `JobStarter`."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, ParamSpec, Protocol, TypeVar

from torchloom import settings
from torchloom.components.job import app_of
from torchloom.errors import LoomError, UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, StateNotWritable
from torchloom.launch.records.record import LAUNCHER_LOST
from torchloom.launch.records.resumption import Continuation
from torchloom.plane.parts import job_environment
from torchloom.rules.lifecycle import CANCELLED_BY_USER
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers import LOCAL
from torchloom.schedulers.local_scheduler import LocalScheduler
from torchloom.specs.api import CfgVal
from torchloom.specs.jobspec import JobSpec, Policy
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.states import JobState
from torchloom.weaver.events import BackgroundTasks, Dispatcher, RunStarted
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import LEFT, JobRegistry, is_over
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Placement, SubmissionRow

STARTED = "run_started"  # a fact of a job: its run exists and must not be made again
FROM_STEP = "from_step"  # the checkpoint to resume from, where one was chosen
UNTIL = "until"  # the step to train up to, where one was chosen
CANCEL = "cancel"  # why it is cancelled, stored before its run exists
REMOVED = "run_removed"
_AT_ONCE = 4  # jobs that are started at the same time
_TRIES = 5  # to start a job while an unfinished run is in the way
_PAUSE = 0.05  # seconds between two checks of a run that is about to be removed
_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class RunSeen(Enum):
    """What exists of a job's run."""

    NOTHING = "nothing"
    MADE = "made"  # by a weaver that may be dead; then the run is removed in moments
    BEGUN = "begun"  # another process owns it: it must not be started again


@dataclass(frozen=True, slots=True)
class Spot:
    """A number of workers on a host, with some of its GPUs."""

    host: str
    workers: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """A job to start, and where."""

    job: str
    spec: Mapping[str, Any]
    spots: tuple[Spot, ...]
    cwd: str = ""
    python: str = ""
    left: int | None = None  # restarts of the last incarnation of its run, which is resumed
    step: int | None = None  # from its checkpoint of this step, instead of the newest
    until: int | None = None  # up to this step


class Launcher(Protocol):
    """Starts and stops runs. All methods may block and are called in threads."""

    def look(self, job: str, left: int | None = None) -> RunSeen:
        """Return what exists of a run, after an incarnation of it that has ended."""

    def start(self, order: LaunchOrder) -> None:
        """Make the run; it is an error if it exists."""

    def stop(self, job: str, reason: str) -> None:
        """End a run at once; one that has ended is left alone."""

    def resume(self, job: str, asked: Continuation) -> None:
        """Resume a run that has ended."""


class RunnerLauncher:
    """Runs of this state folder; they inherit only the listed environment variables."""

    def look(self, job: str, left: int | None = None) -> RunSeen:
        record = catalog.record(job)
        if record is None:
            return RunSeen.NOTHING
        if left is not None and record.restarts <= left:
            return RunSeen.NOTHING if record.is_over() else RunSeen.BEGUN
        folder = RunFolder.named(job)
        if folder.is_agreed(left + 1 if left is not None and left >= 0 else 0):
            return RunSeen.BEGUN
        if record.started_at is not None:
            return RunSeen.BEGUN
        if not record.is_over():
            return RunSeen.MADE
        if left is not None and left >= 0:
            return RunSeen.NOTHING  # it was never agreed on, and the run has later incarnations
        if record.reason == LAUNCHER_LOST:  # its launcher died before any rank started
            return RunSeen.NOTHING if _removed(folder) else RunSeen.MADE
        return RunSeen.BEGUN

    def start(self, order: LaunchOrder) -> None:
        spec = job_from_dict(order.spec)
        _check(spec, order.cwd)
        app = app_of(spec, order.python or sys.executable)
        runner = _runner((spot.host for spot in order.spots), spec.checkpointing.store)
        runner.run(app, spec.scheduler, options(spec, order))

    def resume(self, job: str, asked: Continuation) -> None:
        store = RunFolder.named(job).request().checkpoints
        scheduler = _runner(store=store).scheduler(LOCAL[0])
        assert isinstance(scheduler, LocalScheduler)
        scheduler.resume(job, asked)

    def stop(self, job: str, reason: str) -> None:
        scheduler = _runner().scheduler(LOCAL[0])
        assert isinstance(scheduler, LocalScheduler)
        scheduler.stop(job, reason, at_once=True)


def _runner(hosts: Iterable[str] = (), store: str = "") -> Runner:
    return get_runner(inherited=job_environment(settings.environment(), hosts, store))


def _removed(folder: RunFolder) -> bool:
    try:
        folder.remove()
    except StateNotWritable:
        return False  # the next check may find a disk that can be written
    return True


def options(spec: JobSpec, order: LaunchOrder) -> dict[str, CfgVal]:
    """Return the run options of a job: its own, and its placement."""
    policy = {"policy": _policy(spec)} if spec.recovery.policy else {}
    return {
        **spec.options,
        **policy,
        "id": order.job,
        "cwd": order.cwd or os.path.expanduser("~"),
        "hosts": [f"{spot.host}:{spot.workers}" for spot in order.spots],
        "devices": [",".join(spot.gpus) for spot in order.spots],
        **({"resume": True} if order.left is not None and order.left >= 0 else {}),
        **({"resume_from": order.step} if order.step is not None else {}),
        **({"resume_until": order.until} if order.until is not None else {}),
    }


def _policy(spec: JobSpec) -> str:
    assert spec.recovery.policy is not None
    least = spec.elastic.min if spec.elastic else 0
    more = f",min={least}" if least and spec.recovery.policy is Policy.SHRINK else ""
    return f"{spec.recovery.policy.value}{more}"


def _check(spec: JobSpec, cwd: str) -> None:
    """Refuse a spec that is known to fail."""
    if cwd and not os.path.isdir(cwd):
        raise UserError(
            f"the host that starts the job has no folder {cwd!r}; submit from one that it has"
        )
    path = os.path.join(cwd or os.path.expanduser("~"), spec.script)
    if spec.script and not os.path.isfile(path):
        raise UserError(f"the host that starts the job has no file {path!r}; give the full path")


class JobStarter:
    """Starts every job that has a placement in the database and no run."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        roster: Roster,
        launcher: Launcher,
        events: Dispatcher,
        tasks: BackgroundTasks,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._roster = roster
        self._launcher = launcher
        self._events = events
        self._background = tasks
        self._threads = ThreadPoolExecutor(_AT_ONCE, "starter")
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, job: str) -> None:
        """Start a job in the background, unless that is under way."""
        if job not in self._tasks:
            task = self._background.start(self._bring_up(job), f"start {job}")
            self._tasks[job] = task
            task.add_done_callback(lambda _: self._tasks.pop(job))

    async def stop(self, job: str, reason: str) -> None:
        """End a run."""
        await self._aside(self._launcher.stop, job, reason)

    async def resume(self, job: str, asked: Continuation) -> None:
        """Resume the run of a job that was not submitted to the queue."""
        await self._aside(self._launcher.resume, job, asked)
        self._events.publish(RunStarted(job))

    def is_busy(self, job: str) -> bool:
        """Tell whether a job is being started."""
        task = self._tasks.get(job)
        return task is not None and not task.done()

    async def close(self) -> None:
        """Start no more jobs; wait for the starts that are under way."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _bring_up(self, job: str) -> None:
        """Start a job unless its run exists; all it needs is read from the database."""
        for _ in range(_TRIES):
            if not await self._is_begun(job) and not await self._start(job):
                continue
            if (known := self._jobs.get(job)) is not None and not is_over(known):
                self._jobs.mark(job, {STARTED: True})
                self._events.publish(RunStarted(job))
                await self._end_if_cancelled(job)
            return
        self._end(job, JobState.FAILED, "start_failed: its run could not be made")

    async def _is_begun(self, job: str) -> bool:
        """Tell whether a job has a run; one that a dead weaver left unfinished is waited for."""
        while True:
            seen = await self._aside(self._launcher.look, job, self._left(job))
            if seen is not RunSeen.MADE:
                return seen is RunSeen.BEGUN
            await asyncio.sleep(_PAUSE)

    async def _start(self, job: str) -> bool:
        """Start a job; false where it must be tried again."""
        order = self._order(job)
        if order is None:
            return True  # it was cancelled, or is over
        try:
            await self._aside(self._launcher.start, order)
        except Exception as error:  # the failure of one job must not end the weaver
            if not isinstance(error, LoomError):
                _log.exception("job %s could not be started", job)
            if await self._aside(self._launcher.look, job, self._left(job)) is not RunSeen.NOTHING:
                return False  # another process was faster, or left an unfinished run
            _log.info("job %s did not start: %s", job, error)
            self._end(job, JobState.FAILED, f"start_failed: {error}")
        return True

    def _order(self, job: str) -> LaunchOrder | None:
        """Return how to start a job by the database; none where it must not start."""
        known = self._jobs.get(job)
        row = self._state.one(SubmissionRow, job=job)
        given = self._state.find(Placement, job=job)
        if known is None or is_over(known) or row is None or not given:
            return None
        if known.facts.get(STARTED):
            self._end(job, JobState.FAILED, REMOVED)
            return None
        if (reason := known.facts.get(CANCEL)) is not None:
            self._end(job, JobState.CANCELLED, reason)
            return None
        spots = tuple(Spot(self._host(each), each.workers, tuple(each.gpus)) for each in given)
        left, step, until = (known.facts.get(name) for name in (LEFT, FROM_STEP, UNTIL))
        return LaunchOrder(job, row.spec, spots, row.cwd, row.python, left, step, until)

    def _left(self, job: str) -> int | None:
        """Return the last incarnation of a job's run that has ended."""
        known = self._jobs.get(job)
        return known.facts.get(LEFT) if known else None

    def _host(self, given: Placement) -> str:
        agent = self._roster.agent(given.node)
        return agent.host if agent else given.node

    async def _end_if_cancelled(self, job: str) -> None:
        known = self._jobs.get(job)
        if known is not None and not is_over(known) and known.facts.get(CANCEL):
            try:
                await self.stop(job, known.facts[CANCEL] or CANCELLED_BY_USER)
            except (
                LoomError,
                OSError,
            ) as error:  # another request gets the error
                _log.warning("job %s could not be ended: %s", job, error)

    def _end(self, job: str, state: JobState, reason: str) -> None:
        self._jobs.end(job, state, reason)

    async def _aside(self, act: Callable[P, T], *words: P.args, **more: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: act(*words, **more))
