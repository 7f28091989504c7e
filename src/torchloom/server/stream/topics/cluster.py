"""The cluster as its page shows it: nodes, devices, the ranks on them, and the queue."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torchloom.server.stream.topics.boards import Boards
from torchloom.server.text import whole
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import AgentRow, JobRow, RankProcessRow

INTERVAL = 0.5  # seconds between two polls
_FRESH = 5.0  # seconds for which a heartbeat counts as current
_PARTS = ("nodes", "devices", "ranks", "jobs")  # lists whose items have an id
_OF_OFFER = ("cpus", "memory_mb", "gpus", "free", "jobs")
_UP, _LOST = "up", "lost"

Item = dict[str, Any]
Items = list[Item]


class Cluster:
    """Reads the cluster for all pages."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._access = boards.access

    async def read(self) -> dict[str, Items]:
        """Return the whole value of the topic."""
        devices = [_device(one) for one in (await self._boards.ask("devices"))["devices"]]
        offers = await self._boards.ask("cluster")
        queue = await self._boards.ask("queue")
        names = sorted({name for one in devices for name in one["processes"]})
        ranks, jobs, agents = await self._access.read(_stored, self._access.store, names)
        found = {
            "nodes": nodes_of(agents, offers, devices, datetime.now(UTC)),
            "devices": devices,
            "ranks": ranks,
            "jobs": jobs,
            "queue": queue,
        }
        plain: dict[str, Items] = whole(found)
        return plain


def changes(known: Mapping[str, Items] | None, found: Mapping[str, Items]) -> dict[str, Any]:
    """Return all parts, or the changes of each as `items` and `gone`; the queue is always whole."""
    if known is None:
        return dict(found)
    parts = {name: _changed(known[name], found[name]) for name in _PARTS}
    changed: dict[str, Any] = {name: part for name, part in parts.items() if part}
    return changed if known["queue"] == found["queue"] else {**changed, "queue": found["queue"]}


def nodes_of(
    agents: Iterable[AgentRow], offers: Mapping[str, Any], devices: Items, now: datetime
) -> Items:
    """Return every host that has resources or ranks, with the state of its agent."""
    offered = {node["host"]: node for node in offers["nodes"]}
    by_id = {agent.id: agent for agent in agents}
    last = {agent.host: agent for agent in sorted(by_id.values(), key=lambda one: one.greeted_at)}
    workers: dict[str, set[str]] = {host: set() for host in offered}
    for one in devices:
        workers.setdefault(one["node"], set()).update(one["processes"])
    found = []
    for host in sorted(workers):
        node = offered.get(host, {})
        agent = by_id.get(node.get("id", "")) or last.get(host)
        last_heartbeat = offers["heard"].get(agent.id) if agent else None
        found.append(_node(host, node, agent, len(workers[host])) | {"heard_at": last_heartbeat})
    return [{**one, "heard_at": _steady(one["state"], one["heard_at"], now)} for one in found]


def _node(host: str, offer: Mapping[str, Any], agent: AgentRow | None, workers: int) -> Item:
    state = offer.get("state") or (agent.state if agent else _LOST)
    return {
        "id": host,
        "state": state,
        "reason": agent.reason if agent else "",
        **{name: offer.get(name) for name in _OF_OFFER},
        "workers": workers,
    }


def _steady(state: str, last_heartbeat: str | None, now: datetime) -> str | None:
    """Return the time of a node's last heartbeat; nothing for a current one, which is no change."""
    if last_heartbeat is None:
        return None
    is_fresh = abs((now - datetime.fromisoformat(last_heartbeat)).total_seconds()) < _FRESH
    return None if state == _UP and is_fresh else last_heartbeat


def _device(one: Item) -> Item:
    return {"id": one["uuid"], **one}


def _stored(store: PlaneReader, names: Sequence[str]) -> tuple[Items, Items, list[AgentRow]]:
    """Return the ranks of these names, their jobs, and all agents."""
    ids = sorted({name.split("/")[0] for name in names})
    wanted = frozenset(names)
    ranks = [
        rank for rank in store.state.find(RankProcessRow, job=ids) if rank.process_id in wanted
    ]
    jobs = store.state.find(JobRow, id=ids)
    return [_rank(rank) for rank in ranks], [_job(job) for job in jobs], store.state.find(AgentRow)


def _rank(rank: RankProcessRow) -> Item:
    facts = {name: getattr(rank, name) for name in ("job", "role", "rank", "node", "state")}
    return {"id": rank.process_id, **facts, "replica": rank.replica, "reason": rank.reason}


def _job(job: JobRow) -> Item:
    return {"id": job.id, "name": job.name, "state": job.state, "owner": job.owner}


def _changed(known: Items, found: Items) -> dict[str, Any]:
    before = {item["id"]: item for item in known}
    gone = before.keys() - {item["id"] for item in found}
    items = [item for item in found if before.get(item["id"]) != item]
    return {"items": items, "gone": sorted(gone)} if items or gone else {}
