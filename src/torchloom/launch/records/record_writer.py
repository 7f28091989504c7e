"""Keep a run's record true while it runs: every change is written before the next happens."""

import contextlib
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.launch.records.request import LaunchRequest, whole_group
from torchloom.specs.api import NONE, AppState
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import Place, ReplicaKey
from torchloom.unix import reachable

if TYPE_CHECKING:
    from torchloom.rules.replicas import AppVerdict

CHANGES_SOCKET = "pokes"  # in the folder of the plane's sockets


def notify_weaver(app_id: str) -> None:
    """Say which run has news; never waits."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller,
        reachable(settings.plane_dir() / CHANGES_SOCKET) as address,
    ):
        teller.setblocking(False)
        teller.sendto(app_id.encode(), address)


@dataclass(frozen=True, slots=True)
class StartedRank:
    """A new process of a rank."""

    place: Place
    rank: int
    process: ProcessIdentity | None
    attempt: int
    warmth: str = ""
    life: int = 1
    generation: int = 0


def rank_records(request: LaunchRequest) -> tuple[RankRecord, ...]:
    """Return one waiting record for every rank the request will start."""
    keys = [ReplicaKey(role.name, i) for role in request.roles for i in range(len(role.replicas))]
    return tuple(
        RankRecord(
            role=key.role,
            replica=key.index,
            rank=whole_group(request.role(key.role)).rank(key.index, local_rank),
            local_rank=local_rank,
            logs=rank_logs(request, key, local_rank),
        )
        for key in keys
        for local_rank in range(request.role(key.role).ranks_of(key.index))
    )


def rank_logs(request: LaunchRequest, key: ReplicaKey, local_rank: int) -> str:
    """Return a rank's place below the log folder: ROLE/REPLICA, with /RANK in a group."""
    replica = f"{key.role}/{key.index}"
    return f"{replica}/{local_rank}" if request.role(key.role).distributed else replica


class RunRecordWriter:
    """The one writer of a run's record while its launch process lives."""

    def __init__(self, folder: RunFolder, record: RunRecord) -> None:
        self.folder = folder
        self.record = record

    def running(self) -> None:
        """All that was to start has started."""
        self._write(replace(self.record, state=AppState.RUNNING, started_at=now()), "running")

    def resumed(self, **facts: object) -> None:
        """The run is resumed where an earlier incarnation of it has ended."""
        facts = {"attempt": self.record.restarts, **facts}
        self.note("resumed", generation=self.record.generation, **facts)

    def restarted(
        self,
        restarts: int,
        generation: int,
        reason: str = "",
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """Note why ranks are started again, and what went wrong."""
        generation = max(generation, self.record.generation)
        record = replace(self.record, restarts=restarts, generation=generation)
        record = replace(record, first_error=dict(error or {}))
        self._write(record, "restart", restarts=restarts, reason=reason)

    def asked_for(self, generation: int) -> None:
        """Note a generation before anybody is a member of it: none is had twice."""
        if generation > self.record.generation:
            self._write(replace(self.record, generation=generation))

    def ranks_started(self, started: Iterable[StartedRank]) -> None:
        """Note new processes of some ranks."""
        record = self.record
        begun = list(started)
        for one in begun:
            record = _put(
                record,
                one.place,
                state=AppState.RUNNING,
                rank=one.rank,
                process=one.process,
                attempt=one.attempt,
                life=one.life,
                generation=one.generation,
                warmth=one.warmth,
                exit_code=None,
                started_at=now(),
                ended_at=None,
                step=None,
            )
        if begun:
            self._write(record, "started", ranks=[_shown(one) for one in begun])

    def note(self, event: str, **facts: object) -> None:
        """Write down something that changes no state, such as why a node was replaced."""
        self.folder.add_event(event, **facts)
        notify_weaver(self.record.id)

    def rank_ended(
        self, place: Place, state: AppState, exit_code: int, step: int | None = None
    ) -> None:
        """Note how a rank ended; codes below zero are signals, as the kernel counts them."""
        how = {"state": state, "exit_code": exit_code, "step": step}
        ended = _put(self.record, place, **how, ended_at=now())
        role, replica, local = place
        rank = next(rank for rank in ended.ranks if _place_of(rank) == place)
        facts = {"role": role, "replica": replica, "local_rank": local, "attempt": rank.attempt}
        lived = {"life": rank.life, "generation": rank.generation}
        pid = rank.process.pid if rank.process else None
        self._write(ended, "exit", **facts, **lived, pid=pid, code=exit_code)

    def finished(
        self,
        verdict: "AppVerdict",
        error: str | None,
        lost: int,
        first_error: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the end: after this line in the record nothing of the app runs."""
        record = replace(
            self.record,
            state=verdict.state,
            reason=verdict.reason,
            error=error or NONE,
            first_error=dict(first_error or {}),
            ended_at=now(),
            lost_log_bytes=lost,
            step=min((r.step for r in self.record.ranks if r.step is not None), default=None),
            ranks=tuple(_settled(rank, verdict.state) for rank in self.record.ranks),
        )
        self._write(record, verdict.state.name.lower(), reason=verdict.reason)
        catalog.add_ended(record)

    def _write(self, record: RunRecord, event: str | None = None, **facts: object) -> None:
        self.record = record
        if event:
            self.folder.add_event(event, **facts)
        try:
            self.folder.write_record(record)
        except OSError as error:  # neither folder takes it: run on, and try at the next change
            with contextlib.suppress(OSError):
                print(f"cannot write the record: {error}", file=sys.stderr)  # noqa: T201
        notify_weaver(record.id)


def _shown(one: StartedRank) -> dict[str, object]:
    role, replica, local_rank = one.place
    seat = {"role": role, "replica": replica, "local_rank": local_rank, "rank": one.rank}
    lived = {"attempt": one.attempt, "life": one.life, "generation": one.generation}
    return {**seat, **lived, "pid": one.process.pid if one.process else None}


def _put(record: RunRecord, place: Place, **changes: object) -> RunRecord:
    ranks = tuple(
        replace(rank, **changes)  # type: ignore[arg-type]
        if _place_of(rank) == place
        else rank
        for rank in record.ranks
    )
    return replace(record, ranks=ranks)


def _place_of(rank: RankRecord) -> Place:
    return (rank.role, rank.replica, rank.local_rank)


def _settled(rank: RankRecord, verdict: AppState) -> RankRecord:
    """A rank that never ran ends as the app did."""
    over = rank.state in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)
    return rank if over else replace(rank, state=verdict)
