"""How many ranks on which hosts: from `-n`, `--ppn`, `--nhosts` and what the world offers."""

from collections.abc import Sequence

from torchloom.errors import UserError
from torchloom.launch.environments.world import World
from torchloom.launch.hosts.host_lists import HostSlots, MissingHostfile
from torchloom.settings import LOOPBACK, LOOPBACK_NAMES
from torchloom.specs.dataclass import dataclass


class BadTopology(UserError):
    """Numbers of ranks and hosts that do not fit together."""

    code = "bad_topology"


@dataclass(frozen=True, slots=True)
class HostTopology:
    """So many ranks on each of these hosts, in rank order."""

    hosts: tuple[str, ...]
    per_host: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The world size."""
        return sum(self.per_host)

    @property
    def uniform(self) -> int | None:
        """The one number of ranks a host, or nothing when hosts differ."""
        return self.per_host[0] if len(set(self.per_host)) == 1 else None

    @property
    def slots(self) -> tuple[HostSlots, ...]:
        """The lines of a host file."""
        pairs = zip(self.hosts, self.per_host, strict=True)
        return tuple(HostSlots(host, ranks) for host, ranks in pairs)

    def once(self) -> "HostTopology":
        """The same hosts with one process each: what starts the agents."""
        return HostTopology(self.hosts, (1,) * len(self.hosts), self.notes)


def resolve(
    world: World, n: int | None = None, ppn: int | None = None, nhosts: int | None = None
) -> HostTopology:
    """Return where the ranks go: all there is, unless numbers say less or otherwise."""
    for flag, value in (("-n", n), ("--ppn", ppn), ("--nhosts", nhosts)):
        if value is not None and value < 1:
            raise BadTopology(f"{flag} takes a number from 1, not {value}")
    if not world.hosts:
        raise MissingHostfile("the environment", f"{world.flavour} does not name its hosts")
    if n is not None and ppn is not None:
        nhosts = _hosts_for(n, ppn, nhosts)
    if nhosts is not None and nhosts > len(world.hosts):
        raise BadTopology(
            f"{nhosts} hosts requested, {len(world.hosts)} available; request a larger allocation, "
            "a smaller -n, or pass --hostfile"
        )
    hosts = world.hosts[:nhosts]
    offered = _offered(world)[: len(hosts)]
    per_host = _counts(offered, len(hosts), n, ppn, fixed=nhosts is not None)
    used = tuple(count for count in per_host if count)
    return HostTopology(hosts[: len(used)], used, _notes(world, hosts, used))


def head_address(world: World, topology: HostTopology, template: str = "{host}") -> str:
    """Return where peers reach rank 0. A site may name hosts otherwise on its fast network."""
    if len(topology.hosts) == 1:
        return LOOPBACK if not world.on_every_host else topology.hosts[0]
    head = topology.hosts[0]
    if head in LOOPBACK_NAMES:
        raise BadTopology(
            f"{head} is not an address for the other {len(topology.hosts) - 1} hosts: "
            "write this host's own name first in the host file"
        )
    if world.address and world.hosts[:1] == (head,):
        return world.address
    return template.replace("{host}", head.partition(".")[0] if template != "{host}" else head)


def shared_port(job_id: str | None, lowest: int = 15_000) -> int:
    """Return the port that every rank of a job computes alike, where none can be sent to them."""
    digits = "".join(char for char in job_id or "" if char.isascii() and char.isdigit())
    return lowest + int(digits[-4:] or "0")


def _hosts_for(n: int, ppn: int, nhosts: int | None) -> int:
    if n % ppn and n > ppn:
        raise BadTopology(f"-n {n} is not a multiple of --ppn {ppn}; change one, or leave one out")
    wanted = max(1, n // ppn)
    if nhosts is not None and nhosts != wanted:
        raise BadTopology(f"-n {n} with --ppn {ppn} is {wanted} hosts, not --nhosts {nhosts}")
    return wanted


def _offered(world: World) -> tuple[int, ...]:
    if world.gpus_per_host or len(world.slots) != len(world.hosts):
        return (world.ngpu_per_host,) * len(world.hosts)
    return world.slots


def _counts(
    offered: Sequence[int], hosts: int, n: int | None, ppn: int | None, fixed: bool
) -> list[int]:
    if ppn is not None:
        return [min(ppn, n) if n is not None else ppn] * hosts
    if n is None:
        return list(offered)
    if fixed or n > sum(offered):
        if n % hosts:
            raise BadTopology(
                f"-n {n} cannot be spread evenly over {hosts} hosts that offer {sum(offered)} "
                "ranks; pass --ppn, or a host file with slots"
            )
        return [n // hosts] * hosts
    counts, left = [], n
    for room in offered:
        counts.append(min(room, left))
        left -= counts[-1]
    return counts


def _notes(world: World, hosts: Sequence[str], used: Sequence[int]) -> tuple[str, ...]:
    if len(world.slots) != len(world.hosts):
        return ()
    beyond = [
        f"{host}: {count} ranks on {max(slots, world.cores)} slots"
        for host, count, slots in zip(hosts, used, world.slots, strict=False)
        if count > max(slots, world.cores)
    ]
    return tuple(beyond[:1]) if len(beyond) < 2 else (f"{beyond[0]}, and {len(beyond) - 1} more",)
