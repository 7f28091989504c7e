"""Inject the faults of a plan at their times, record each, and wait until the job has recovered."""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

from torchloom.chaos.faults import actions
from torchloom.chaos.faults.kinds import kind_of
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import FILE, Chaos, FaultLog, SeriesHead, Strike, read
from torchloom.chaos.targets import Aim, JobSight, Victim
from torchloom.chaos.undo import UndoNotes
from torchloom.errors import UserError

RECOVERED_STEPS = 2  # steps that all ranks must take after a recovery
_POLL = 0.1  # seconds between two observations
_JOIN = 1.0  # seconds to wait for an observation without a reply
LIMIT = 120.0  # seconds for a job to recover
LOCK = "chaos.lock"
_TICK = 0.01  # seconds between two turns


@dataclass(frozen=True, slots=True)
class TimedSight:
    """One observation of a job: when it began, and the result if there was a reply."""

    at: float
    sight: JobSight | None


class Lookout:
    """Observes a job in a thread, so that a killed weaver does not delay the series."""

    def __init__(self, see: Callable[[], JobSight | None]) -> None:
        self.last = TimedSight(0.0, None)
        self._see = see
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-lookout", daemon=True)

    def __enter__(self) -> Self:
        self.look()  # the first fault is recorded with a step
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN)

    def look(self) -> None:
        """Observe the job once."""
        at = time.monotonic()
        self.last = TimedSight(at, self._see())

    def _run(self) -> None:
        while not self._over.wait(_POLL):
            self.look()


class RecoveryWatch:
    """Decides whether a job has recovered, from the faults and the observations since."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}  # pids that must have been replaced, by rank
        self._since: JobSight | None = None
        self._from = 0.0

    def hit(self, strike: Strike, now: float) -> None:
        """Start over: a fault was injected or undone."""
        self._since, self._from = None, now
        target = strike.target
        if target is None or target.rank is None or target.pid is None:
            return
        if kind_of(strike.kind).ends_rank:
            self._ended[target.rank] = target.pid

    def has_recovered(self, look: TimedSight) -> bool:
        """Tell whether all ranks are up, ended processes are replaced, and all take steps."""
        sight = look.sight
        if look.at < self._from:
            return False
        if sight is None or not sight.is_whole or self._is_old(sight):
            self._since = None
            return False
        if self._since is None or self._since.pids != sight.pids:
            self._since = sight
        before = self._since.steps
        return all(
            (step or 0) >= (before[rank] or 0) + RECOVERED_STEPS
            for rank, step in sight.steps.items()
        )

    def _is_old(self, sight: JobSight) -> bool:
        return any(sight.pids.get(rank) == pid for rank, pid in self._ended.items())


class SeriesJudge(Protocol):
    """Judges which promises a job has kept."""

    def begin(self, head: SeriesHead) -> None: ...

    def judge(self, strike: Strike) -> Sequence[str]: ...

    def end(self, chaos: Chaos) -> Mapping[str, Any]: ...


class FaultSeries:
    """Injects one plan into one job. `run` ends with the plan, the job, or a recovery timeout.

    A fault is injected at its time, whether or not the job has recovered from the one before.
    """

    def __init__(
        self,
        victim: Victim,
        plan: Sequence[Fault],
        judge: SeriesJudge,
        head: SeriesHead,
        limit: float = LIMIT,
        until: float = float("inf"),
        show: Callable[[Strike], None] = lambda _: None,
        see: Callable[[], JobSight | None] | None = None,
    ) -> None:
        self._victim = victim
        self._ahead = list(plan)
        self._judge = judge
        self._head = head
        self._limit = limit
        self._until = until  # seconds since the start
        self._show = show
        self._log = FaultLog(victim.folder / FILE)
        self._notes = UndoNotes(victim.folder)
        self._begun = 0.0
        self._number = 0
        self._open: list[Strike] = []  # without a recovery yet
        self._undo_at: dict[int, float] = {}
        self._watch = RecoveryWatch()
        self._last = 0.0  # time of the last fault or undo
        self._lookout = Lookout(see or victim.see)

    def run(self) -> Chaos:
        """Run the plan; lasting faults are undone in any case."""
        why = "interrupted"
        self._notes.undo_all()  # of an earlier series that was killed
        self._log.begin(self._head)
        self._judge.begin(self._head)
        try:
            with self._lookout:
                self._begun = time.monotonic()
                while not (done := self.turn()):
                    time.sleep(_TICK)
            why = done
        finally:
            try:
                self._undo(list(self._undo_at))
                self._notes.undo_all()  # of a fault that was interrupted halfway
            finally:
                self._log.end(time.time(), why)
        for strike in self._open:
            self._judge.judge(strike)
        return read(self._log.path)

    def turn(self) -> str:
        """Do what is due; return why the series is over, else an empty text."""
        self._undo([n for n, at in self._undo_at.items() if at <= time.monotonic()])
        if self._is_over():
            return "job over"
        now = time.monotonic() - self._begun
        if self._ahead and now <= self._until:
            if self._ahead[0].at <= now:
                self._strike_all_due(now)
                return ""
        elif not self._open:
            return "time" if self._ahead else "faults"
        return self._look_after()

    def _strike_all_due(self, now: float) -> None:
        while self._ahead and self._ahead[0].at <= now:
            self._strike(self._ahead.pop(0))
            now = time.monotonic() - self._begun

    def _strike(self, fault: Fault) -> None:
        sight, found = self._lookout.last.sight, actions.aim(fault, self._victim)
        planned = Strike(
            n=self._number,
            kind=fault.kind,
            planned_at=fault.at,
            target=found.target if found else None,
            lasts=_length(fault),
            step=sight.step if sight else None,
            generation=sight.generation if sight else None,
        )
        self._number += 1
        self._log.note(planned)
        struck = self._struck(planned, found)
        self._note(struck)
        self._took(struck, found is not None and found.undo is not None)

    def _struck(self, planned: Strike, found: Aim | None) -> Strike:
        """Inject a fault; one whose undo cannot be written down is refused."""
        if found is not None and found.undo is not None:
            try:
                self._notes.write(planned.n, found.undo)
            except OSError as error:
                why = f"cannot record how to undo it: {error}"
                return replace(planned, outcome="refused", why=why)
        return actions.strike(planned, found)

    def _took(self, struck: Strike, is_noted: bool) -> None:
        """Handle the outcome of a fault: wait for recovery, schedule its undo, or undo it now."""
        self._last = time.monotonic()
        if struck.outcome != "struck":
            if is_noted:
                self._notes.undo(struck.n)  # it may have happened halfway
            self._judge.judge(struck)
            return
        self._watch.hit(struck, self._last)
        self._open.append(struck)
        if is_noted:
            self._undo_at[struck.n] = self._last + (struck.lasts or 0.0)

    def _undo(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._notes.undo(number)
            del self._undo_at[number]
            self._last = time.monotonic()
            self._open = [self._undone(one, number) for one in self._open]

    def _undone(self, strike: Strike, number: int) -> Strike:
        if strike.n != number:
            return strike
        strike = replace(strike, undone_at=time.time())
        self._note(strike)
        self._watch.hit(strike, self._last)  # observations during the fault do not count
        return strike

    def _look_after(self) -> str:
        """Check whether the job has recovered; return why the series is over, if so."""
        if not self._open:
            return ""
        if not self._undo_at and self._watch.has_recovered(self._lookout.last):
            self._recovered()
        elif time.monotonic() - self._last > self._limit:
            return "not recovered"
        return ""

    def _recovered(self) -> None:
        at, strikes, self._open = time.time(), self._open, []
        for strike in strikes:
            strike = replace(strike, recovered_at=at)
            self._note(strike)
            self._judge.judge(strike)

    def _note(self, strike: Strike) -> None:
        self._log.note(strike)
        self._show(strike)

    def _is_over(self) -> bool:
        """Tell whether the job has ended; from its record if the weaver does not reply."""
        sight = self._lookout.last.sight
        return sight.is_over if sight is not None else self._victim.record().is_over()


class AlreadyThere(UserError):
    """Another series is running; two would undo each other's faults."""

    code = "chaos_already_there"

    def __init__(self, job: str) -> None:
        super().__init__(f"`loom chaos` is already running on {job}; wait until it ends")


@contextlib.contextmanager
def alone(victim: Victim) -> Iterator[None]:
    """Hold the lock that makes this the only series of a job."""
    fd = os.open(victim.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyThere(victim.job) from None
        yield
    finally:
        os.close(fd)


def _length(fault: Fault) -> float | None:
    return kind_of(fault.kind).seconds if fault.lasts is None else fault.lasts
