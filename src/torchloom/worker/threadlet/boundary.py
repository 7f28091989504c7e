"""The step boundary: where a rank keeps its promises about commands, and commands act.

The link's thread makes promises, the training thread keeps them. Whoever promises marks the
command first and reads the step then; whoever passes a boundary writes the step first and looks
then. So no step begins that a promise has excluded: either the mark is seen, or the promise is
about the later step. One thread at a time runs Python, so passing needs no lock; where that is not
so, it takes one.
"""

import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Literal, Protocol

from torchloom.bus.progress_page import APPLIED, LASTED, MOVED, STEP, ProgressPage, StepPhase
from torchloom.messages import plane
from torchloom.messages.plane import Kind, Value

AHEAD_NS = 10_000_000  # how long an answer may take without anybody waiting for it
PATIENCE = 0.25  # seconds a rank waits at its limit before it decides itself
NEVER = 1 << 62

# Whether this rank promised it, it was decided before the rank was there, or even done before.
Origin = Literal["here", "plan", "past"]

_REMEMBERED = 1024  # commands whose outcome is still known when somebody asks again
_RECENT = 31  # steps whose median says how long one takes


class OutcomeJudge(Protocol):
    """Whoever can end the waiting: write an abort, and say which outcome was there first."""

    def abort(self, command: str) -> int | None: ...


@dataclass(slots=True, eq=False)
class PromisedCommand:
    """A command this rank has promised about: undecided until `decided`."""

    command: str
    kind: Kind
    payload: dict[str, Value]
    step: int  # where the rank was when it promised
    ahead: int
    decided: bool = False
    effective: int = NEVER
    origin: Origin = "here"
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.step + 1 + self.ahead

    @property
    def check_step(self) -> int:
        """Return the step before which the training thread must have a look at this."""
        return self.effective if self.decided else self.limit


class StepBoundary:
    """One rank's steps, and the commands that wait for one of them."""

    def __init__(
        self,
        page: ProgressPage,
        judge: OutcomeJudge,
        resumed: Callable[[PromisedCommand, int], None],
    ) -> None:
        self.kind: plane.Boundary = "none"
        self.step = 0  # the one that the rank is in, or about to begin
        self.applied = 0
        self._page = page
        self._words = page.words
        self._judge = judge
        self._resumed = resumed
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._next_check = 0  # the first boundary is always looked at
        self._since = time.monotonic_ns()
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._orders: dict[str, PromisedCommand] = {}
        self._known: OrderedDict[str, int | None] = OrderedDict()
        self._pause: PromisedCommand | None = None  # committed, and not resumed yet
        self._is_disturbed = False  # members change: nobody waits here for anything else
        if not _one_at_a_time():
            self.reach = self._reach_locked  # type: ignore[method-assign]

    # The training thread.

    def reach(self, step: int, applied: int) -> bool:
        """Pass to the beginning of a step; tell whether something is to be attended to there.

        All that an idle step costs is here, so the page's words are written without a call.
        """
        words = self._words
        now = monotonic_ns()
        words[STEP] = step
        words[APPLIED] = applied
        words[LASTED] = lasted = now - self._since
        words[MOVED] = self._since = now
        self._recent.append(lasted)
        self.step = step
        return step >= self._next_check

    def _reach_locked(self, step: int, applied: int) -> bool:
        with self._lock:
            return StepBoundary.reach(self, step, applied)

    def begin(self, kind: plane.Boundary) -> None:
        """Be at the first boundary, of this kind; what came before it was no step."""
        self.kind = kind
        self._recent.clear()

    def disturb(self, is_disturbed: bool) -> None:
        """Have a rank that waits here for a command come out, or no longer."""
        with self._changed:
            self._is_disturbed = is_disturbed
            self._changed.notify_all()

    def attend(self) -> list[PromisedCommand]:
        """Keep the promises about the step to be begun; return what acts here, in order."""
        if self._is_disturbed:
            return []
        deadline = time.monotonic() + PATIENCE
        while (order := self._undecided()) is not None:
            self._page.enter(StepPhase.WAITING, time.monotonic_ns())
            with self._changed:
                if self._changed.wait_for(lambda: order.decided, deadline - time.monotonic()):
                    continue
            self.settle(order.command, self._judge.abort(order.command))
        self._page.enter(StepPhase.STEP, time.monotonic_ns())
        return self._due()

    def pause(self, order: PromisedCommand) -> None:
        """Wait until somebody resumes, or stops, the job."""
        self._page.enter(StepPhase.WAITING, time.monotonic_ns())
        with self._changed:
            self._changed.wait_for(lambda: self._pause is not order or self._is_disturbed)
            if self._pause is order:  # it holds, and is gone on with when that is over
                self._orders[order.command] = order
                self._schedule_check()
        self._since = time.monotonic_ns()
        self._page.enter(StepPhase.STEP, self._since)

    def give_up(self) -> None:
        """Keep what can be kept when there will be no more boundaries: nobody waits for us."""
        self.kind = "none"
        self.settle_all()

    def settle_all(self) -> None:
        """Have an outcome of everything that was promised, as whoever was first decided it."""
        with self._lock:
            undecided = [order.command for order in self._orders.values() if not order.decided]
        for command in undecided:
            self.settle(command, self._judge.abort(command))

    def decided(self) -> list[PromisedCommand]:
        """Return what is to act at a later step, in order."""
        with self._lock:
            orders = [order for order in self._orders.values() if order.decided]
        return sorted(orders, key=lambda order: order.effective)

    def leave(self, page: ProgressPage) -> None:
        """Forget all promises, in a fork of the process that gave them; write to this page."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._orders.clear()
        self._next_check = NEVER
        self._page = page
        self._words = page.words

    def _undecided(self) -> PromisedCommand | None:
        with self._lock:
            waiting = (order for order in self._orders.values() if not order.decided)
            return next((order for order in waiting if order.limit <= self.step), None)

    def _due(self) -> list[PromisedCommand]:
        with self._lock:
            orders = [o for o in self._orders.values() if o.decided and o.effective <= self.step]
            for order in orders:
                del self._orders[order.command]
            self._schedule_check()
        return sorted(orders, key=lambda order: order.effective)

    def plan(self, order: PromisedCommand) -> None:
        """Take over what was decided before this process was there, ahead of its first boundary.

        That one is looked at in any case, and all later ones are found there.
        """
        with self._lock:
            if order.command not in self._known:
                self._remember(order.command, order.effective)
                self._orders[order.command] = order
                if order.kind == "pause":
                    self._pause = order

    # Anybody.

    def promise(
        self, command: str, kind: Kind, payload: dict[str, Value]
    ) -> PromisedCommand | None:
        """Promise not to pass a limit without an outcome; None when there is one already.

        The same command again gets the same promise.
        """
        ahead = self._ahead()
        with self._lock:
            if command in self._known:
                return None
            if command not in self._orders:
                self._next_check = -1  # the mark; only then the step
                self._orders[command] = PromisedCommand(command, kind, payload, self.step, ahead)
                self._schedule_check()
            return self._orders[command]

    def settle(self, command: str, effective: int | None) -> None:
        """Take note of an outcome; the first one that is heard is the only one there is."""
        with self._changed:
            order = self._orders.get(command)
            if order is None or order.decided:
                return
            self._remember(command, effective)
            if effective is None:
                del self._orders[command]
            else:
                order.effective = effective
                self._arrange(order)
            order.decided = True
            self._schedule_check()
            self._changed.notify_all()

    def outcome(self, command: str) -> int | None:
        """Return the outcome of a decided command; None for an abort."""
        with self._lock:
            return self._known.get(command)

    def seconds(self) -> float:
        """Return the recent median of a step's time; 0 while none is known."""
        recent = sorted(self._recent.copy())
        return recent[len(recent) // 2] / 1e9 if recent else 0.0

    def _ahead(self) -> int:
        """Return how many steps an answer may take; a twentieth of one more is none more."""
        nanoseconds = round(self.seconds() * 1e9)
        return max(1, -(-(AHEAD_NS - nanoseconds // 20) // nanoseconds)) if nanoseconds else 1

    def _arrange(self, order: PromisedCommand) -> None:
        """Settle what pause, resume and stop mean for each other.

        A paused rank reaches no further step: so a resume acts at once, and a stop where the
        pause holds the ranks.
        """
        if order.kind == "resume":
            del self._orders[order.command]
            if self._pause is not None:
                self._orders.pop(self._pause.command, None)
            self._pause = None
            self._resumed(order, self.step)
        elif order.kind == "stop" and self._pause is not None:
            order.effective = min(order.effective, self._pause.effective)
            self._pause = None
        elif order.kind == "pause":
            self._pause = order

    def _remember(self, command: str, effective: int | None) -> None:
        self._known[command] = effective
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _schedule_check(self) -> None:
        self._next_check = min((order.check_step for order in self._orders.values()), default=NEVER)


def _one_at_a_time() -> bool:
    """Tell whether this interpreter has a GIL."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
