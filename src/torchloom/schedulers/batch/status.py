"""One job in TorchX's words: what its engine says, and what its run has written down. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.schedulers.batch.index import Entry
from torchloom.schedulers.batch.query import EngineJob
from torchloom.specs.api import NONE, AppState, ReplicaStatus, RoleStatus, is_terminal

_ORDER = (AppState.RUNNING, AppState.FAILED, AppState.CANCELLED, AppState.PENDING)
_ASKED_TO_END = ("", "signal_15")  # what a job looks like that ended because it was asked to
FORGOTTEN = "forgotten"  # the engine does not know it any more, and nothing was written down


def state_of(
    job: EngineJob | None, record: RunRecord | None, end: Mapping[str, str]
) -> tuple[AppState, str]:
    """Return a job's state and why: the engine's word, and the run's where that says more."""
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
    entry: Entry | None, job: EngineJob | None, record: RunRecord | None, state: AppState
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
