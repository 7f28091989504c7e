"""From what a launch asks for and where it is to a request over hosts. Pure."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from torchloom.launch.assembly import choose_launcher, mpiexec_kind
from torchloom.launch.assembly.topology import BadTopology, HostTopology, resolve
from torchloom.launch.environments.world import World
from torchloom.launch.grammar.command import AGENT, LaunchCommand
from torchloom.launch.hosts.host_lists import same_host
from torchloom.launch.records.request import AgentCarrier, LaunchRequest
from torchloom.settings import LOOPBACK_NAMES
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:
    from torchloom.launch.hosts.sites import Site


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Which hosts get how many ranks, who brings them there, and which hosts stand by."""

    world: World
    topology: HostTopology
    launcher: str
    spares: tuple[str, ...] = ()
    least: int | None = None

    @property
    def is_here(self) -> bool:
        """Whether this host's own agent is all that is needed."""
        return self.launcher == AGENT


def plan_hosts(
    asked: LaunchCommand,
    world: World,
    own_host: str,
    ranks_here: Callable[[object], int],
    has: Callable[[str], bool],
    mpiexec: Callable[[], str],
) -> HostPlan:
    """Decide where the ranks go; `ranks_here` makes a number of auto, gpu and cpu."""
    per_host = None if asked.per_node is None else ranks_here(asked.per_node)
    total = ranks_here(asked.total) if asked.total is not None else None
    if len(world.hosts) <= 1 and total is None and per_host is None:
        per_host = ranks_here(None) if world.flavour == "plain" else None
    hosts = _hosts(asked, world)
    topology = resolve(world, total, per_host, hosts)
    used = len(topology.hosts)
    spares = world.hosts[used:][: asked.spares]
    launcher = _launcher(asked, world, topology, spares, own_host, has, mpiexec)
    asked.check_launcher(launcher)
    least = asked.nodes.least if asked.nodes and asked.nodes.least < used else None
    return HostPlan(world, topology, launcher, () if launcher == AGENT else spares, least)


def over_hosts(
    request: LaunchRequest, plan: HostPlan, asked: LaunchCommand, site: "Site"
) -> LaunchRequest:
    """Return a request for one host as one for all of the plan's."""
    (role,) = request.roles
    spot = plan.topology
    counts = () if spot.uniform else spot.per_host
    role = replace(
        role,
        replicas=role.replicas * len(spot.hosts),
        ranks=spot.uniform or max(spot.per_host),
        uneven=counts,
        distributed=True,
        min_group=plan.least,
    )
    carrier = AgentCarrier(
        launcher=plan.launcher,
        world=asdict(plan.world),
        flags=(*site.flags, *asked.launcher_flags),
        cpu_bind=asked.cpu_bind or site.cpu_bind,
        env=dict(site.env),
    )
    notes = (*request.notes, *spot.notes)
    nodes = (*spot.hosts, *plan.spares)
    return replace(request, roles=(role,), nodes=nodes, carrier=carrier, notes=notes)


def _hosts(asked: LaunchCommand, world: World) -> int | None:
    """Return how many hosts are wanted; all there are when nothing is said."""
    there = len(world.hosts)
    if asked.nodes is None:
        return there - asked.spares if asked.spares and there > asked.spares else None
    if there < asked.nodes.least:
        raise BadTopology(
            f"--nnodes {asked.nodes}: {there} host{'s' if there != 1 else ''} here; ask for a "
            "larger allocation, pass --hostfile FILE, or start this command on every host with "
            "--rdzv-endpoint HOST:PORT"
        )
    return min(asked.nodes.most, there)


def _launcher(
    asked: LaunchCommand,
    world: World,
    topology: HostTopology,
    spares: tuple[str, ...],
    own_host: str,
    has: Callable[[str], bool],
    mpiexec: Callable[[], str],
) -> str:
    if asked.launcher == "mpiexec":
        return mpiexec_kind(mpiexec())
    if asked.launcher != "auto":
        return asked.launcher
    only = topology.hosts[0]
    if len(topology.hosts) == 1 and (only in LOOPBACK_NAMES or same_host(only, own_host)):
        return AGENT
    hosts = len(topology.hosts) + len(spares)
    own = {"lsf": "blaunch", "pbs": "pbs_tmrsh"}.get(world.flavour, "")
    is_asked = has("mpiexec") or not (own and has(own))
    version = mpiexec() if is_asked and world.flavour in ("pbs", "lsf", "pals") else ""
    return choose_launcher(world, max(2, hosts), has, version)
