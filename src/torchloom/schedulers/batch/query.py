"""Ask an engine for all jobs at once, and not again before something may have changed."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field

from torchloom.specs.api import AppState
from torchloom.specs.dataclass import dataclass

SOON, LATE = 1.0, 15.0  # seconds that an answer counts: while things happen, and when nothing does


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One job as its engine sees it."""

    id: str
    state: AppState
    native: str = ""  # the engine's own word
    why: str = ""  # ours: preempted, time_limit, requeued, completing, node_failure, ...
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    exit_code: int = 0
    name: str = ""
    tasks: tuple["EngineJob", ...] = field(default=())  # of an array


Answer = Mapping[str, EngineJob]


class Query:
    """The engine's last word on all jobs of this user; any number of askers cost one question.

    An answer counts for a second. Each time it says the same as the one before it counts for
    longer, up to a quarter of a minute.
    """

    def __init__(
        self, ask: Callable[[], Answer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._asked_at = 0.0
        self._counts = SOON

    def jobs(self, fresh: bool = False) -> Answer:
        """Return all jobs; `fresh` asks whatever was answered before."""
        with self._lock:
            now = self._clock()
            if self._answer is None or fresh or now - self._asked_at >= self._counts:
                answer = self._ask()
                self._counts = min(self._counts * 2, LATE) if answer == self._answer else SOON
                self._answer, self._asked_at = answer, now
            return self._answer

    def job(self, job: str, fresh: bool = False) -> EngineJob | None:
        return self.jobs(fresh).get(job)

    def forget(self) -> None:
        """Something was done that changes the answer."""
        with self._lock:
            self._answer, self._counts = None, SOON
