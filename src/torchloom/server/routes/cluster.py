"""The cluster: the state of its plane, its nodes, free resources, and the queue."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from torchloom.server.models import cluster as models
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import declared
from torchloom.server.security.auth import Who
from torchloom.weaver import views
from torchloom.weaver.store.rows import AgentRow

_UP = "up"
Owner = Annotated[str, Path(min_length=1, max_length=64)]
router = APIRouter(tags=["cluster"])


@router.get("/api/plane", response_model=models.PlaneStatus, responses=declared(503))
async def plane(access: AccessDep) -> Any:
    """The state of the weaver: its start, its agents and ranks, what it has stored and dropped."""
    return await access.link.ask("status")


@router.get("/api/cluster/workers", response_model=models.Workers, responses=declared(503))
async def workers(access: AccessDep) -> Any:
    """Every node whose agent has registered: its health, its resources, and its jobs."""
    nodes = await _nodes(access)
    agents = await access.read(access.store.state.find, AgentRow)
    return {"items": [_worker(agent, nodes.get(agent.id, {})) for agent in agents]}


@router.get("/api/cluster/resources", response_model=models.Resources, responses=declared(503))
async def resources(access: AccessDep) -> Any:
    """The resources of all nodes that are up, and the free part of them."""
    nodes = [node for node in (await _nodes(access)).values() if node["state"] == _UP]
    return {
        "nodes": len(nodes),
        **{name: _amount(nodes, name) for name in ("cpus", "memory_mb", "gpus")},
    }


@router.get("/api/cluster/queue", response_model=models.Queue, responses=declared(503))
async def queue(access: AccessDep) -> Any:
    """The queued jobs in order, and what each waits for."""
    return {"items": await access.link.ask("queue")}


@router.get("/api/quotas", response_model=models.Quotas, responses=declared(503))
async def quotas(access: AccessDep) -> Any:
    """Owners that have a limit: how many workers they may have at once, and how many they have."""
    return {"items": await access.link.ask("quotas")}


@router.put(
    "/api/quotas/{owner}",
    response_model=models.Quota,
    responses=declared(400, 413, 422, 503),
)
async def quota(owner: Owner, wanted: models.QuotaRequest, access: AccessDep, who: Who) -> Any:
    """Set how many workers an owner may have at once."""
    return await access.link.ask("quota", owner=owner, workers=wanted.workers, author=who.user)


@router.get("/api/retention", response_model=models.Retention, responses=declared(503))
async def retention(access: AccessDep) -> Any:
    """How long ended runs are kept, from the config file of the weaver's user."""
    return await access.link.ask("retention")


async def _nodes(access: PlaneAccess) -> dict[str, dict[str, Any]]:
    return {node["id"]: node for node in (await access.link.ask("cluster"))["nodes"]}


def _worker(agent: AgentRow, node: dict[str, Any]) -> dict[str, Any]:
    has = {name: node.get(name) for name in ("cpus", "memory_mb", "gpus", "free", "jobs")}
    return {
        **node,
        **has,
        "id": agent.id,
        "host": agent.host,
        "state": agent.state,
        "reason": agent.reason,
        "first_seen": views.when(agent.first_seen),
        "last_hello": views.when(agent.greeted_at),
    }


def _amount(nodes: list[dict[str, Any]], name: str) -> dict[str, int]:
    total = sum(_count(node.get(name)) for node in nodes)
    free = sum(_count((node.get("free") or {}).get(name)) for node in nodes)
    return {"total": total, "free": free}


def _count(amount: Any) -> int:
    """Return the amount; GPUs may be listed one by one."""
    return len(amount) if isinstance(amount, list | dict) else int(amount or 0)
