"""From a decision to start a replica to the order its node's agent gets. Pure."""

from dataclasses import replace

from torchloom.launch.contract import Meeting, group_variables
from torchloom.launch.group import Group
from torchloom.launch.ledger import rank_logs
from torchloom.launch.orders import RankOrder, ReplicaOrder
from torchloom.launch.request import LaunchRequest, RoleRequest
from torchloom.launch.variables import LIFE_VARIABLE, STANDIN_VARIABLE
from torchloom.rules.happening import Start
from torchloom.sealed import unseal


def replica_order(
    request: LaunchRequest,
    group: Group,
    start: Start,
    meeting: Meeting,
    file_store: bool,
    resume: str = "",
    generation: int = 0,
) -> ReplicaOrder:
    """Return what starts a replica as a part of its group, which meets there.

    `resume` says what it goes on from, `generation` which membership it is born into.
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
        env=unseal(replica.env),
        ports=replica.ports,
        grouped=role.distributed,
        file_store=file_store,
        copies=_copies(request, role, start),
        generation=generation,
    )


def newcomer_order(
    order: ReplicaOrder, local_rank: int, generation: int, life: int
) -> ReplicaOrder:
    """Return what starts one rank of a replica again, while the others of its group live."""
    mine = next(rank for rank in order.ranks if rank.local_rank == local_rank)
    told = {**mine.variables, LIFE_VARIABLE: str(life), STANDIN_VARIABLE: "1"}
    ranks = (replace(mine, variables=told),)
    return replace(order, ranks=ranks, generation=generation, life=life)


def _copies(request: LaunchRequest, role: RoleRequest, start: Start) -> str:
    """Return the folder of an attempt's copied logs: one a node, which may share disks."""
    run = request.app_id if len(role.replicas) == 1 else f"{request.app_id}_{start.key.index}"
    return f"{request.copies}/{run}/attempt_{start.attempt}" if request.copies else ""
