"""The step boundary: where a rank keeps its promises about commands, and commands take effect.

The link's thread makes promises, the training thread keeps them. A promise marks the command first
and reads the step then; passing a boundary writes the step first and checks for marks then. So no
step begins that a promise has excluded: either the mark is seen, or the promise is about the later
step. With the GIL, passing needs no lock; without it, it takes one.
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

AHEAD_NS = 10_000_000  # how long a reply may take without delaying a rank
PATIENCE = 0.25  # seconds a rank waits at its limit before it decides itself
NEVER = 1 << 62

# Promised by this rank, decided before the rank joined, or even applied before that.
Origin = Literal["here", "plan", "past"]

_REMEMBERED = 1024  # commands whose outcome is kept for repeated requests
_RECENT = 31  # steps whose median is the step time


class OutcomeJudge(Protocol):
    """Decides for a rank that can wait no longer: writes an abort, returns the first outcome."""

    def abort(self, command: str) -> int | None: ...


@dataclass(slots=True, eq=False)
class PromisedCommand:
    """A command that this rank has promised to wait for, until it is `decided`."""

    command: str
    kind: Kind
    payload: dict[str, Value]
    step: int  # the step of the rank when it promised
    ahead: int
    decided: bool = False
    effective: int = NEVER
    origin: Origin = "here"
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.step + 1 + self.ahead

    @property
    def check_step(self) -> int:
        """Return the step before which the training thread must check this command."""
        return self.effective if self.decided else self.limit


class StepBoundary:
    """The steps of one rank, and the commands that take effect at one of them."""

    def __init__(
        self,
        page: ProgressPage,
        judge: OutcomeJudge,
        resumed: Callable[[PromisedCommand, int], None],
    ) -> None:
        self.kind: plane.Boundary = "none"
        self.step = 0  # the current step, or the next one between two steps
        self.applied = 0
        self._page = page
        self._words = page.words
        self._judge = judge
        self._resumed = resumed
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._next_check = 0  # the first boundary is always checked
        self._since = time.monotonic_ns()
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._orders: dict[str, PromisedCommand] = {}
        self._known: OrderedDict[str, int | None] = OrderedDict()
        self._pause: PromisedCommand | None = None  # committed and not resumed
        self._is_disturbed = False  # members change: waits end
        if not _one_at_a_time():
            self.reach = self._reach_locked  # type: ignore[method-assign]

    # The training thread.

    def reach(self, step: int, applied: int) -> bool:
        """Pass to the beginning of a step; tell whether a command has to be handled there.

        This is the whole cost of an idle step, so the page is written without a call.
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
        """Begin at the first boundary, of this kind; the time before it was not a step."""
        self.kind = kind
        self._recent.clear()

    def disturb(self, is_disturbed: bool) -> None:
        """End waits for commands while members change, or allow them again."""
        with self._changed:
            self._is_disturbed = is_disturbed
            self._changed.notify_all()

    def attend(self) -> list[PromisedCommand]:
        """Wait for undecided commands; return those that take effect at this step, in order."""
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
        """Wait until the job is resumed or stopped."""
        self._page.enter(StepPhase.WAITING, time.monotonic_ns())
        with self._changed:
            self._changed.wait_for(lambda: self._pause is not order or self._is_disturbed)
            if self._pause is order:  # members change: the pause continues afterwards
                self._orders[order.command] = order
                self._schedule_check()
        self._since = time.monotonic_ns()
        self._page.enter(StepPhase.STEP, self._since)

    def give_up(self) -> None:
        """Settle all promises when there will be no more boundaries."""
        self.kind = "none"
        self.settle_all()

    def settle_all(self) -> None:
        """Get the outcome of every undecided command; the first writer has decided it."""
        with self._lock:
            undecided = [order.command for order in self._orders.values() if not order.decided]
        for command in undecided:
            self.settle(command, self._judge.abort(command))

    def decided(self) -> list[PromisedCommand]:
        """Return the commands that take effect at a later step, in order."""
        with self._lock:
            orders = [order for order in self._orders.values() if order.decided]
        return sorted(orders, key=lambda order: order.effective)

    def turn_to(self, page: ProgressPage) -> None:
        """Write to another page, before the first boundary."""
        self._page, self._words = page, page.words

    def leave(self, page: ProgressPage) -> None:
        """Forget all promises in a fork, and write to another page."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._orders.clear()
        self._next_check = NEVER
        self.turn_to(page)

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
        """Add a command that was decided before this process joined, before its first boundary.

        The first boundary is always checked, and finds it.
        """
        with self._lock:
            if order.command not in self._known:
                self._remember(order.command, order.effective)
                self._orders[order.command] = order
                if order.kind == "pause":
                    self._pause = order

    # Any thread.

    def promise(
        self, command: str, kind: Kind, payload: dict[str, Value]
    ) -> PromisedCommand | None:
        """Promise not to pass a limit without an outcome; None if there is an outcome already.

        The same command gets the same promise again.
        """
        ahead = self._ahead()
        with self._lock:
            if command in self._known:
                return None
            if command not in self._orders:
                self._next_check = -1  # the mark, before the step is read
                self._orders[command] = PromisedCommand(command, kind, payload, self.step, ahead)
                self._schedule_check()
            return self._orders[command]

    def settle(self, command: str, effective: int | None) -> None:
        """Record the outcome of a command; later ones are ignored."""
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
        """Return the median of recent step times in seconds; 0 before the first step."""
        recent = sorted(self._recent.copy())
        return recent[len(recent) // 2] / 1e9 if recent else 0.0

    def _ahead(self) -> int:
        """Return how many steps a reply may take, rounded up, with a tolerance of 1/20 step."""
        nanoseconds = round(self.seconds() * 1e9)
        return max(1, -(-(AHEAD_NS - nanoseconds // 20) // nanoseconds)) if nanoseconds else 1

    def _arrange(self, order: PromisedCommand) -> None:
        """Combine pause, resume and stop.

        A paused rank reaches no further step: a resume takes effect at once, and a stop at the
        step of the pause.
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
