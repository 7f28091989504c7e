"""An attempt of a job that is recovered live: what is stored of it, and what is in memory only."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torchloom.messages.membership import ProcessReport, ProcessReports
from torchloom.rules.membership.election import (
    GenerationPlan,
    Holding,
    RecoveryLimits,
    StateOrigin,
)
from torchloom.rules.membership.events import (
    Event,
    Exited,
    ForkFailed,
    MemberNodeLost,
    Registered,
    StoreMade,
)
from torchloom.rules.membership.generation import (
    GenerationPhase,
    State,
    record_from_dict,
    record_to_dict,
)
from torchloom.rules.membership.live_recovery import is_quiet, restore
from torchloom.rules.membership.seats import MemberProcess, seat_of
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import LiveRecoveryRow, RankProcessRow

LIVE, RESTARTING = "live", "restarting"


@dataclass(slots=True)
class LiveAttempt:
    """How a job's present attempt stands; `is_due` and what follows it a new weaver finds out."""

    job: str
    attempt: int
    role: str
    state: State
    store: str = ""
    stored: int = -1  # the generation whose store that is
    since: float | None = None  # when the loss was known that it recovers from
    cause: str = ""  # why all ranks are to be started again; empty while they need not be
    is_due: bool = True  # its launch process is to be sent whether it is watched
    sent_at: float | None = None  # when it was sent that, or to restart
    whys: dict[int, str] = field(default_factory=dict)  # why ranks cannot be recovered live

    @property
    def is_restarting(self) -> bool:
        return bool(self.cause)

    @property
    def is_over(self) -> bool:
        """Return whether its launch process handles its losses again."""
        return self.is_restarting or self.state.record.phase in (
            GenerationPhase.COMPLETE,
            GenerationPhase.FAILED,
        )

    @property
    def is_recovering(self) -> bool:
        """Return whether its members are about to form a generation, or are to be started again."""
        forming = self.state.record.phase in (GenerationPhase.GATHERING, GenerationPhase.MOVING)
        return forming or self.is_restarting

    @property
    def is_busy(self) -> bool:
        """Return whether time alone makes something happen."""
        return self.is_due or self.is_restarting or not is_quiet(self.state)

    @property
    def generation(self) -> int:
        return self.state.record.generation

    def who(self, rank: int, number: int, node: str = "") -> MemberProcess:
        """Return a process by its number; its seat has the node."""
        seats = self.state.record.seats
        if 0 <= rank < len(seats) and seats[rank].life == number:
            node = seats[rank].node
        return MemberProcess(rank, number, node)

    def row(self) -> LiveRecoveryRow:
        """Return what is to be stored."""
        return LiveRecoveryRow(
            job=self.job,
            attempt=self.attempt,
            state=RESTARTING if self.is_restarting else LIVE,
            record=record_to_dict(self.state.record),
            role=self.role,
            store=self.store,
            stored=self.stored,
            since=self.since,
            cause=self.cause,
        )


class LiveAttempts:
    """The attempts that are recovered live, as stored, by job."""

    def __init__(
        self,
        state: StateStore,
        limits: RecoveryLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._attempts: dict[str, LiveAttempt] = {}
        self._busy: set[str] = set()
        for row in state.find(LiveRecoveryRow):
            self.keep(read_back(row, limits or RecoveryLimits(), clock()))

    def get(self, job: str) -> LiveAttempt | None:
        return self._attempts.get(job)

    def all(self) -> list[LiveAttempt]:
        return list(self._attempts.values())

    @property
    def busy(self) -> frozenset[str]:
        """The jobs that wait for an answer; only these have timeouts."""
        return frozenset(self._busy)

    def is_recovering(self, job: str) -> bool:
        """Return whether the ranks of a job are about to form a generation, or to be restarted."""
        one = self._attempts.get(job)
        return one is not None and one.is_recovering

    def first_step(self, rank: RankProcessRow) -> int | None:
        """Return the first step of a rank's generation; none while it does not train."""
        one = self._attempts.get(rank.job)
        if one is None or one.attempt != rank.attempt or one.is_over:
            return 0
        record = one.state.record
        if (record.phase, record.generation) != (GenerationPhase.TRAINING, rank.generation):
            return None
        plan = record.plan
        if isinstance(plan, GenerationPlan) and plan.origin is StateOrigin.PEER:
            return plan.start
        return 0

    def keep(self, one: LiveAttempt) -> None:
        """Add an attempt, or note that it has changed."""
        self._attempts[one.job] = one
        if one.is_busy:
            self._busy.add(one.job)
        else:
            self._busy.discard(one.job)

    def drop(self, job: str) -> None:
        """Remove an attempt and its row."""
        self._state.remove(LiveRecoveryRow, job=job)
        del self._attempts[job]
        self._busy.discard(job)


def read_back(row: LiveRecoveryRow, limits: RecoveryLimits, now: float) -> LiveAttempt:
    """Return what a weaver begins with that finds this row: it knows no answers."""
    record = record_from_dict(row.record)
    room: dict[str, int] = {}  # until the launch process reports
    for seat in record.seats:
        room[seat.node] = room.get(seat.node, 0) + 1
    state = restore(State(Holding.REPLICATED, room, record, limits), record, now)
    return LiveAttempt(
        row.job, row.attempt, row.role, state, row.store, row.stored, row.since, row.cause
    )


def happened(watched: LiveAttempt, report: ProcessReports) -> list[Event]:
    """Return what is new in the report of a launch process, in the order of its handling."""
    record = watched.state.record
    events: list[Event] = [MemberNodeLost(node) for node in report.lost if node not in record.lost]
    for one in ended(report.lives):
        who = watched.who(one.rank, one.life, one.node)
        seat = seat_of(record.seats, who)
        if seat is None or seat.is_gone:
            continue
        if one.why:
            events.append(ForkFailed(who, one.why))
        else:
            events.append(Exited(who, one.code or 0, max(0, one.step)))
    for node in sorted(record.lost - set(report.lost)):
        there = (one for one in report.lives if one.node == node and one.code is None)
        processes = tuple(watched.who(one.rank, one.life, one.node) for one in there)
        events.append(Registered(node, processes))
    if report.store:
        events.append(StoreMade(report.stored))
    return events


def ended(reports: Iterable[ProcessReport]) -> list[ProcessReport]:
    """Return the processes that have ended, or never were."""
    return [one for one in reports if one.code is not None or one.why]


def newest(reports: Iterable[ProcessReport]) -> Mapping[int, ProcessReport]:
    """Return the last process of each rank."""
    return {one.rank: one for one in sorted(reports, key=lambda one: (one.rank, one.life))}
