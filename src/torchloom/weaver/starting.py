"""Bring up the jobs that were placed: each once, whoever is killed meanwhile."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from torchloom.errors import LoomError
from torchloom.launch.records.resumption import Continuation
from torchloom.rules.lifecycle import CANCELLED_BY_USER
from torchloom.specs.job import JobState
from torchloom.weaver.jobs import LEFT, Jobs, is_over
from torchloom.weaver.launching import Launcher, Order, Seen, Spot
from torchloom.weaver.roster import Roster
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Placement, Submission

STARTED = "run_started"  # among a job's facts: its run is there, and is not to be made again
FROM_STEP = "from_step"  # the checkpoint it is to go on from, where one was chosen
UNTIL = "until"  # the step up to which it is to train, where one was chosen
CANCEL = "cancel"  # why it is to end, said before there was a run to end
REMOVED = "run_removed"
_AT_ONCE = 4  # jobs that are started at the same time
_TRIES = 5  # to start one that somebody else's remains keep from it
_PAUSE = 0.05  # seconds between two looks at a run that is about to be unmade
_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Starting:
    """Carries out what the database says: a job with placements and no run is to be started."""

    def __init__(self, state: StateStore, jobs: Jobs, roster: Roster, launcher: Launcher) -> None:
        self._state = state
        self._jobs = jobs
        self._roster = roster
        self._launcher = launcher
        self._threads = ThreadPoolExecutor(_AT_ONCE, "starter")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.on_started: Callable[[str], None] = lambda job: None  # who looks after runs
        self.on_task: Callable[[asyncio.Task[None]], None] = lambda task: None

    def begin(self, job: str) -> None:
        """See to it that a job's run is there; what was begun is not begun again."""
        if job not in self._tasks:
            task = asyncio.create_task(self._bring_up(job), name=f"start {job}")
            self._tasks[job] = task
            task.add_done_callback(lambda task: self._done(job, task))

    async def stop(self, job: str, reason: str) -> None:
        """End a run."""
        await self._aside(self._launcher.stop, job, reason)

    async def resume(self, job: str, asked: Continuation) -> None:
        """Have the run of a job go on that did not come through the queue."""
        await self._aside(self._launcher.resume, job, asked)
        self.on_started(job)

    def is_busy(self, job: str) -> bool:
        """Tell whether a job is being started."""
        task = self._tasks.get(job)
        return task is not None and not task.done()

    def is_any(self) -> bool:
        """Tell whether any job is being started."""
        return bool(self._tasks)

    async def close(self) -> None:
        """Begin nothing more; what is under way comes to its end."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _bring_up(self, job: str) -> None:
        """Start a job unless somebody has; what it is told, it reads from what is stored."""
        for _ in range(_TRIES):
            if not await self._is_begun(job) and not await self._start(job):
                continue
            if (known := self._jobs.get(job)) is not None and not is_over(known):
                self._jobs.mark(job, {STARTED: True})
                self.on_started(job)
                await self._end_if_cancelled(job)
            return
        self._end(job, JobState.FAILED, "start_failed: its run could not be made")

    async def _is_begun(self, job: str) -> bool:
        """Look whether a job has a run; one that its dead maker has left is waited out."""
        while True:
            seen = await self._aside(self._launcher.look, job, self._left(job))
            if seen is not Seen.MADE:
                return seen is Seen.BEGUN
            await asyncio.sleep(_PAUSE)

    async def _start(self, job: str) -> bool:
        """Start a job; tell whether that is settled, one way or the other."""
        order = self._order(job)
        if order is None:
            return True  # it was cancelled, or is over
        try:
            await self._aside(self._launcher.start, order)
        except Exception as error:  # whatever one job trips over must not end the weaver
            if not isinstance(error, LoomError):
                _log.exception("job %s could not be started", job)
            if await self._aside(self._launcher.look, job, self._left(job)) is not Seen.NOTHING:
                return False  # somebody was faster, or left something
            _log.info("job %s did not start: %s", job, error)
            self._end(job, JobState.FAILED, f"start_failed: {error}")
        return True

    def _order(self, job: str) -> Order | None:
        """Return what the database says of a job that is to be started now."""
        known = self._jobs.get(job)
        row = self._state.one(Submission, job=job)
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
        return Order(job, row.spec, spots, row.cwd, row.python, left, step, until)

    def _left(self, job: str) -> int | None:
        """Return which life of a job's run is left behind."""
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
            except (LoomError, OSError) as error:  # it runs on; whoever asks again is told why
                _log.warning("job %s could not be ended: %s", job, error)

    def _end(self, job: str, state: JobState, reason: str) -> None:
        self._jobs.end(job, state, reason)

    async def _aside(self, act: Callable[P, T], *words: P.args, **more: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: act(*words, **more))

    def _done(self, job: str, task: asyncio.Task[None]) -> None:
        del self._tasks[job]
        self.on_task(task)
