"""The queue as it stands: the rules decide, and each decision is stored before it is acted on."""

from collections.abc import Callable, Iterable

from torchloom.rules import queue
from torchloom.specs.job import JobState
from torchloom.weaver import queueing
from torchloom.weaver.jobs import Jobs
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Placement

PLACED = "placed"

Effects = tuple[queue.Effect, ...]


class Turns:
    """`rules/queue` over the database: whoever reads it after a crash goes on from there."""

    def __init__(self, state: StateStore, jobs: Jobs, begin: Callable[[str], None]) -> None:
        self._state = state
        self._jobs = jobs
        self._begin = begin
        self._why: tuple[queue.State, dict[str, str]] = (queue.State(), {})
        self.queue = queueing.load(state, jobs)
        jobs.on_over = self._over

    def why(self) -> dict[str, str]:
        """Return what every waiting job waits for, whose turn is first at the front."""
        if self._why[0] is not self.queue:  # known by heart until something changes
            self._why = (self.queue, queue.reasons(self.queue))
        return self._why[1]

    def take(self, event: queue.Event) -> None:
        """Take in an event, and do what follows from it."""
        with self._state.together():
            effects = self.decide(event)
            self.store(effects)
        self.act(effects)

    def decide(self, event: queue.Event) -> Effects:
        """Take in an event; what follows is to be stored, in the same transaction, and done."""
        self.queue, effects = queue.step(self.queue, event)
        return effects

    def store(self, effects: Iterable[queue.Effect]) -> None:
        """Store who was given what: from now on these jobs are to run."""
        for effect in effects:
            if isinstance(effect, queue.Place):
                self._state.put(*queueing.rows_of(effect.job, effect.shares))
                self._jobs.turn(effect.job, JobState.RUNNING, PLACED)

    def act(self, effects: Iterable[queue.Effect]) -> None:
        """Do what has been stored."""
        for effect in effects:
            if isinstance(effect, queue.Place):
                self._begin(effect.job)

    def go_on(self) -> None:
        """Take up what an earlier weaver has left: places of the ended, starts that are due."""
        if ended := queueing.forgotten(self._state, self._jobs):
            self._state.remove(Placement, job=ended)
        for job in self.queue.placed:
            self._begin(job)

    def leave(self, jobs: Iterable[str]) -> Effects:
        """Take jobs that wait out of the queue, in one step and within one transaction.

        What follows is stored; the caller acts on it once the transaction is.
        """
        effects = self.decide(queue.LeftTogether(frozenset(jobs)))
        self.store(effects)
        return effects

    def _over(self, job: str) -> None:
        """Have back what a job was given that has ended."""
        if job in self.queue.waiting or job in self.queue.placed:
            with self._state.together():
                if job in self.queue.placed:
                    self._state.remove(Placement, job=job)
                effects = self.decide(queue.Left(job))
                self.store(effects)
            self.act(effects)
