"""What the ranks of a local app say about its replicas and roles, in TorchX's words. Pure enough:
only the ranks' own error files are read."""

from collections import defaultdict
from collections.abc import Iterable

from torchloom.launch.logs.error_file import ErrorFile, first_error
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.specs.api import NONE, AppState, ReplicaStatus, RoleStatus

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
