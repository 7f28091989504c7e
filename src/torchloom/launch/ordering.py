"""From a decision to start a replica to the order its node's agent gets. Pure."""

from torchloom.launch.contract import Meeting, group_variables
from torchloom.launch.group import Group
from torchloom.launch.ledger import rank_logs
from torchloom.launch.orders import RankOrder, ReplicaOrder
from torchloom.launch.request import LaunchRequest, RoleRequest
from torchloom.rules.recovery import Start


def replica_order(
    request: LaunchRequest,
    group: Group,
    start: Start,
    meeting: Meeting,
    file_store: bool,
    resume: str = "",
) -> ReplicaOrder:
    """Return what starts a replica as a part of its group, which meets there.

    `resume` says what it goes on from.
    """
    key, role = start.key, group.role
    replica = request.replica(key)
    ranks = tuple(
        RankOrder(
            local_rank,
            rank_logs(request, key, local_rank),
            group_variables(request, group, key, local_rank, start.attempt, meeting, resume),
            dict(enumerate(request.copied)).get(local_rank, 0),
        )
        for local_rank in range(role.ranks_of(key.index))
    )
    return ReplicaOrder(
        role=key.role,
        index=key.index,
        attempt=start.attempt,
        argv=replica.argv,
        cwd=role.cwd or request.cwd,
        ranks=ranks,
        env=replica.env,
        ports=replica.ports,
        grouped=role.distributed,
        file_store=file_store,
        copies=_copies(request, role, start),
    )


def _copies(request: LaunchRequest, role: RoleRequest, start: Start) -> str:
    """Return the folder of an attempt's copied logs: one a node, which may share disks."""
    run = request.app_id if len(role.replicas) == 1 else f"{request.app_id}_{start.key.index}"
    return f"{request.copies}/{run}/attempt_{start.attempt}" if request.copies else ""
