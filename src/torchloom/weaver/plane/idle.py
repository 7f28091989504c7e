"""When a plane that nobody asked for by name may leave: after an hour without a job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchloom.errors import LoomError

IDLE_VARIABLE = "LOOM_PLANE_IDLE"  # seconds
_DEFAULT = 3600.0
_LOOKS = 10  # within the limit


@dataclass(slots=True)
class Idleness:
    """How long there has been nothing to do: told now and then whether there is."""

    limit: float
    since: float

    @property
    def interval(self) -> float:
        """Return how often to look, in seconds."""
        return min(60.0, self.limit / _LOOKS)

    def over(self, now: float, busy: bool) -> bool:
        """Take in whether there is a job now; tell whether it has been quiet for too long."""
        if busy:
            self.since = now
        return now - self.since >= self.limit


def limit(env: Mapping[str, str]) -> float:
    """Return after how many seconds without a job a plane leaves."""
    try:
        return max(0.0, float(env[IDLE_VARIABLE]))
    except (KeyError, ValueError):
        return _DEFAULT


def busy(ask: Callable[..., object]) -> bool:
    """Tell whether a job lives here: by the runs' own records, and by what the weaver says."""
    from torchloom.launch.records.catalog import records

    if any(not record.is_over() for record in records()):
        return True
    try:
        found = ask("jobs", timeout=2.0, active=True)
    except LoomError:  # no weaver to ask: it is being started again, or knows no such question
        return False
    return bool(found)
