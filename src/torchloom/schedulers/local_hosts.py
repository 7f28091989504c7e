"""Place an app's first role: so many ranks on each host, with these devices.

The queue that assigns nodes and devices sets the run options `hosts` and `devices`. Further roles,
such as parameter servers, run beside it on the one host, and see no devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchloom import settings
from torchloom.errors import UserError, shorten
from torchloom.launch.assembly import choose_launcher
from torchloom.launch.assembly.topology import HostTopology
from torchloom.launch.environments import find_world
from torchloom.launch.grammar.command import AGENT, LaunchCommand
from torchloom.launch.grammar.host_plan import HostPlan, over_hosts
from torchloom.launch.host import devices
from torchloom.launch.host.identity import host_name
from torchloom.launch.hosts.host_lists import HostSlots, same_host
from torchloom.launch.hosts.sites import site_of
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest
from torchloom.settings import LOOPBACK_NAMES
from torchloom.specs.api import CfgVal

_SITES = "sites.toml"  # in $LOOM_HOME


class BadHostPlacement(UserError):
    """Hosts or devices that an app cannot be put on."""

    code = "bad_place"


def placed(request: LaunchRequest, cfg: Mapping[str, CfgVal]) -> LaunchRequest:
    """Return the request for the hosts and devices that the options name; as it is without."""
    hosts = [_host(word) for word in _words(cfg, "hosts")]
    if hosts:
        request = _on(request, hosts)
    masks = _words(cfg, "devices")
    return _masked(request, masks) if masks else request


def _words(cfg: Mapping[str, CfgVal], name: str) -> list[str]:
    value = cfg.get(name)
    return value if isinstance(value, list) else []


def _host(word: str) -> HostSlots:
    host, colon, ranks = word.rpartition(":")
    if not host or not colon or not ranks.isdecimal() or int(ranks) < 1:
        raise BadHostPlacement(f"hosts: {shorten(word)!r} is not HOST:RANKS; write node1:4")
    return HostSlots(host, int(ranks))


def _on(request: LaunchRequest, hosts: Sequence[HostSlots]) -> LaunchRequest:
    if not request.roles or any(len(role.replicas) != 1 for role in request.roles):
        raise BadHostPlacement("hosts: only roles of one replica can be put on hosts")
    own, env = host_name(), settings.environment()
    ranks = tuple(each.slots or 1 for each in hosts)
    if len(hosts) == 1 and _is_here(hosts[0].host, own):
        first, *others = request.roles
        return replace(request, roles=(replace(first, ranks=ranks[0]), *others))
    if len(request.roles) != 1:
        raise BadHostPlacement("hosts: an app of several roles runs on one host")
    world = find_world({}, own).with_hosts(tuple(hosts))
    launcher = choose_launcher(world, max(2, len(hosts)), lambda program: False)
    plan = HostPlan(world, HostTopology(world.hosts, ranks), launcher)
    site = site_of(own, env, settings.loom_home() / _SITES)
    return over_hosts(request, plan, LaunchCommand(words=(AGENT,)), site)


def _is_here(host: str, own: str) -> bool:
    return host in LOOPBACK_NAMES or same_host(host, own)


def _masked(request: LaunchRequest, masks: Sequence[str]) -> LaunchRequest:
    """Have each replica see its devices alone; an empty mask hides all of them."""
    replicas = [replica for role in request.roles for replica in role.replicas]
    if len(masks) == len(request.roles[0].replicas):
        masks = [*masks, *[""] * (len(replicas) - len(masks))]
    if len(masks) != len(replicas):
        raise BadHostPlacement(
            f"devices: {len(masks)} lists for {len(replicas)} replicas; give one each"
        )
    dealt = iter(masks)
    roles = tuple(
        replace(role, replicas=tuple(_seeing(each, next(dealt)) for each in role.replicas))
        for role in request.roles
    )
    return replace(request, roles=roles)


def _seeing(replica: ReplicaRequest, mask: str) -> ReplicaRequest:
    return replace(replica, env={**replica.env, devices.MASK: mask})
