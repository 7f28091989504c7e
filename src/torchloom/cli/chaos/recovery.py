"""Tell when a job that was hit goes on: what the weaver sees, looked at again and again."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from torchloom.cli.chaos.kinds import kind_of
from torchloom.cli.chaos.record import Strike
from torchloom.cli.chaos.targets import Sight

GOES_ON = 2  # steps that all ranks must have taken since they were whole
_LOOK = 0.1  # seconds between two looks
_FAREWELL = 1.0  # for a look that nobody answers


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a job: when it was begun, and what was seen, if anybody answered."""

    at: float
    sight: Sight | None


class Lookout:
    """Looks at a job beside whoever strikes: a weaver that was killed keeps only this waiting."""

    def __init__(self, see: Callable[[], Sight | None]) -> None:
        self.last = Look(0.0, None)
        self._see = see
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-lookout", daemon=True)

    def __enter__(self) -> Self:
        self.look()  # the first strike knows what it hits
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(_FAREWELL)

    def look(self) -> None:
        """Look once."""
        at = time.monotonic()
        self.last = Look(at, self._see())

    def _run(self) -> None:
        while not self._over.wait(_LOOK):
            self.look()


class Watch:
    """Decides whether a job has recovered: feed it what was hit, and what is seen since."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}  # the processes that must be others, by rank
        self._since: Sight | None = None
        self._from = 0.0

    def hit(self, strike: Strike, now: float) -> None:
        """Begin anew: something was hit, or what lasted was undone."""
        self._since, self._from = None, now
        target = strike.target
        if target is None or target.rank is None or target.pid is None:
            return
        if kind_of(strike.kind).ends_rank:
            self._ended[target.rank] = target.pid

    def goes_on(self, look: Look) -> bool:
        """Tell whether all ranks are up, none is one that was ended, and all take steps."""
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
            (step or 0) >= (before[rank] or 0) + GOES_ON for rank, step in sight.steps.items()
        )

    def _is_old(self, sight: Sight) -> bool:
        return any(sight.pids.get(rank) == pid for rank, pid in self._ended.items())
