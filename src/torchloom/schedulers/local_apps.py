"""What is known of the apps on this machine, read from their records, and ways to end them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from signal import SIGQUIT, SIGTERM

from torchloom import settings
from torchloom.errors import NotFound, UserError
from torchloom.launch.logs import reader
from torchloom.launch.logs.files import ErrorFile, first_error
from torchloom.launch.logs.reader import Span, Tail, Wait
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.schedulers.api import DescribeAppResponse, ListAppResponse
from torchloom.specs.api import (
    NONE,
    AppState,
    ReplicaStatus,
    RoleStatus,
    app_from_dict,
    make_app_handle,
)

# A replica is in the first of these states that any of its ranks is in.
_ORDER = (
    AppState.RUNNING,
    AppState.FAILED,
    AppState.CANCELLED,
    AppState.PENDING,
    AppState.SUCCEEDED,
)


def role_statuses(record: RunRecord) -> list[RoleStatus]:
    """Return the state of every replica, by role."""
    replicas: defaultdict[tuple[str, int], list[RankRecord]] = defaultdict(list)
    for rank in record.ranks:
        replicas[rank.role, rank.replica].append(rank)
    roles: defaultdict[str, list[ReplicaStatus]] = defaultdict(list)
    for (role, index), ranks in replicas.items():
        roles[role].append(
            ReplicaStatus(
                id=index,
                state=replica_state(rank.state for rank in ranks),
                role=role,
                hostname=record.host,
                structured_error_msg=_error(record, ranks),
            )
        )
    return [RoleStatus(role, found) for role, found in roles.items()]


def replica_state(states: Iterable[AppState]) -> AppState:
    """Return what a replica is, by what its ranks are."""
    present = set(states)
    return next((state for state in _ORDER if state in present), AppState.UNKNOWN)


def _error(record: RunRecord, ranks: list[RankRecord]) -> str:
    failed = [rank for rank in ranks if rank.state is AppState.FAILED]
    reports = (ErrorFile.read(record.log_path(rank) / "error.json") for rank in failed)
    return first_error(reports) or NONE


def describe(app_id: str) -> DescribeAppResponse | None:
    """Return all that is known of an app, or nothing."""
    record = catalog.record(app_id)
    if record is None:
        return None
    try:
        app = app_from_dict(RunFolder.named(app_id).app())
    except FileNotFoundError:  # removed since the line before
        return None
    return DescribeAppResponse(
        app_id=app_id,
        state=record.state,
        num_restarts=record.restarts,
        msg=record.reason,
        structured_error_msg=record.error,
        metadata=app.metadata,
        roles_statuses=role_statuses(record),
        roles=app.roles,
    )


def listed(backend: str) -> list[ListAppResponse]:
    """Return every app, newest first."""
    return [
        ListAppResponse(
            app_id=record.id,
            state=record.state,
            app_handle=make_app_handle(backend, record.session, record.id),
            name=record.name,
        )
        for record in catalog.records()
    ]


def is_here(app_id: str) -> bool:
    """Tell whether the app's end can be waited for here; one that is unknown or over can be."""
    record = catalog.record(app_id)
    return record is None or record.is_over() or all(one.is_here() for one in record.owners())


def is_over(app_id: str) -> bool:
    record = catalog.record(app_id)
    return record is None or record.is_over()


def wait_end(app_id: str, timeout: float) -> bool:
    """Sleep until no process owns the app any more, at most so long."""
    record = catalog.record(app_id)
    return record is None or record.wait_end(timeout)


def stop(app_id: str, reason: str, signum: int = SIGTERM, at_once: bool = False) -> None:
    """Record why, and signal the app's launch process; an app that is over is left alone."""
    record = catalog.record(app_id)
    if record is None or record.is_over() or record.launcher is None:
        return
    if not record.launcher.is_here():
        raise UserError(f"{app_id} runs on host {record.host}; stop it there: `loom stop {app_id}`")
    RunFolder.named(app_id).ask_cancel(settings.user_name(), reason, signum)
    record.launcher.send(SIGQUIT if at_once else SIGTERM)


def remove(app_id: str) -> None:
    """Delete an app that is over, with its logs."""
    record = catalog.record(app_id)
    if record is not None and not record.is_over():
        raise UserError(f"{app_id} is {record.state.name}; stop it first: `loom stop {app_id}`")
    RunFolder.named(app_id).remove()


def tails(
    app_id: str,
    role: str,
    index: int,
    stream: str,
    since: datetime | None,
    until: datetime | None,
) -> tuple[list[Tail], list[str] | None]:
    """Return the logs of one replica's ranks, and their names where there are several."""
    record = catalog.record(app_id)
    if record is None:
        raise NotFound("app", app_id, remedy="`loom ls` lists the jobs")
    ranks = _replica_ranks(record, role, index)
    found = [Tail(record.log_path(rank), stream, Span(since, until)) for rank in ranks]
    return found, [f"[rank{rank.rank}]: " for rank in ranks] if len(ranks) > 1 else None


def lines(
    found: list[Tail],
    labels: list[str] | None,
    regex: str | None,
    wait: Wait | None,
    until: datetime | None,
) -> Iterator[str]:
    """Yield the lines of some logs; with `wait`, until that returns true or `until` has passed."""
    return reader.lines(found, labels, regex, wait and reader.ending(wait, until))


def _replica_ranks(record: RunRecord, role: str, index: int) -> list[RankRecord]:
    """Return the ranks of one replica; the error lists the roles and replicas there are."""
    roles = dict.fromkeys(rank.role for rank in record.ranks)
    if role not in roles:
        raise NotFound("role", role, roles, f"{record.id} has: {', '.join(roles)}")
    ranks = [rank for rank in record.ranks if (rank.role, rank.replica) == (role, index)]
    if not ranks:
        count = len({rank.replica for rank in record.ranks if rank.role == role})
        raise NotFound("replica", f"{role}/{index}", remedy=f"{role} has replicas 0 to {count - 1}")
    return ranks
