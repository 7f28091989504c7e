"""One job in TorchX's terms: the state of its engine, and the record of its run. Pure."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.schedulers.batch.index import IndexEntry
from torchloom.specs.api import NONE, AppState, ReplicaStatus, RoleStatus, is_terminal
from torchloom.specs.dataclass import dataclass

SOON, LATE = 1.0, 15.0  # seconds that an answer counts: while things happen, and when nothing does
# A job of several parts has the first of these states that any part is in.
_PART_ORDER = (
    *(AppState.RUNNING, AppState.PENDING, AppState.UNKNOWN),
    *(AppState.FAILED, AppState.CANCELLED),
)
_ORDER = (AppState.RUNNING, AppState.FAILED, AppState.CANCELLED, AppState.PENDING)
_ASKED_TO_END = ("", "signal_15")  # what a job looks like that ended because it was asked to
FORGOTTEN = "forgotten"  # the engine does not know it any more, and nothing was written down


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One job as its engine sees it."""

    id: str
    state: AppState
    native: str = ""  # the engine's own name of the state
    why: str = ""  # ours: preempted, time_limit, requeued, completing, node_failure, ...
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    exit_code: int = 0
    name: str = ""
    tasks: tuple["EngineJob", ...] = field(default=())  # of an array


Answer = Mapping[str, EngineJob]


class Query:
    """The engine's last answer about all jobs of this user; any number of callers cost one query.

    An answer is valid for a second. Each time it is the same as the one before it is valid for
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
        """Drop the answer: something was done that changes it."""
        with self._lock:
            self._answer, self._counts = None, SOON


def joined_parts(job: str, parts: list[EngineJob]) -> EngineJob:
    """Return parts as the job they are of; one that is whole stays as it is."""
    if len(parts) == 1 and parts[0].id == job:
        return parts[0]
    ordered = sorted(parts, key=lambda part: _by_number(part.id))
    state, leading = _leading(ordered)
    hosts = tuple(dict.fromkeys(host for part in ordered for host in part.hosts))
    restarts = max(part.restarts for part in parts)
    tasks = tuple(ordered)
    return replace(leading, id=job, state=state, hosts=hosts, restarts=restarts, tasks=tasks)


def _by_number(part: str) -> list[str | int]:
    """Return what puts part 10 behind part 9."""
    return [int(word) if word.isdecimal() else word for word in re.split("([0-9]+)", part)]


def _leading(parts: Iterable[EngineJob]) -> tuple[AppState, EngineJob]:
    known = list(parts)
    for state in _PART_ORDER:
        for part in known:
            if part.state is state:
                return state, part
    return known[0].state, known[0]


def state_of(
    job: EngineJob | None, record: RunRecord | None, end: Mapping[str, str]
) -> tuple[AppState, str]:
    """Return a job's state and why: the engine's, and the run's where that has more."""
    if job is None:
        if end:
            return AppState[end["state"]], end["reason"]
        over = record is not None and record.is_over()
        return (record.state, record.reason) if record and over else (AppState.UNKNOWN, FORGOTTEN)
    if job.state is AppState.FAILED and record is not None and record.is_over():
        if record.state is AppState.CANCELLED and job.why in _ASKED_TO_END:
            return record.state, record.reason
        return job.state, job.why or record.reason
    if job.state is AppState.RUNNING and not job.why and record is not None:
        return job.state, record.reason
    return job.state, job.why


def role_statuses(
    entry: IndexEntry | None, job: EngineJob | None, record: RunRecord | None, state: AppState
) -> list[RoleStatus]:
    """Return every replica with its host; without a run, as the engine has dealt them."""
    if entry is None:
        return []
    ranks: defaultdict[tuple[str, int], list[RankRecord]] = defaultdict(list)
    for rank in record.ranks if record else ():
        ranks[rank.role, rank.replica].append(rank)
    hosts = iter(job.hosts if job else ())
    roles = []
    for role, count in entry.replicas.items():
        replicas = []
        for index in range(count):
            host = next(hosts, "")
            known = ranks.get((role, index), [])
            host = next((r.process.host for r in known if r.process), host)
            found = _replica_state([r.state for r in known], state)
            replicas.append(ReplicaStatus(index, found, role, host))
        roles.append(RoleStatus(role, replicas))
    return roles


def error_of(state: AppState, record: RunRecord | None) -> str:
    return record.error if record is not None and state is AppState.FAILED else NONE


def _replica_state(ranks: Sequence[AppState], state: AppState) -> AppState:
    """A job that waits has no running replica, one that is over none either, whatever was noted."""
    found = next((one for one in _ORDER if one in ranks), AppState.SUCCEEDED if ranks else state)
    if state is AppState.RUNNING:
        return found
    return found if is_terminal(found) and is_terminal(state) else state
