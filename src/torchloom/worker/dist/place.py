"""Rank, world size and node of this process, from the environment or `setup_torch`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchloom.errors import UserError
from torchloom.launch.environments import World, find_world
from torchloom.launch.environments.world import number
from torchloom.launch.host.identity import host_name
from torchloom.launch.hosts.host_lists import read_hosts
from torchloom.settings import LOOPBACK_NAMES
from torchloom.worker import environment


class BadRankVariables(UserError):
    """Variables of the launcher contradict each other, or are incomplete."""

    code = "bad_place"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The numbers of a rank. None: the launcher does not set it, the ranks find out."""

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    node_index: int | None = 0
    num_nodes: int | None = 1

    @property
    def is_whole(self) -> bool:
        """Whether all numbers are known."""
        rest = (self.local_rank, self.local_world_size, self.node_index, self.num_nodes)
        return None not in rest

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks are known to share this host."""
        return self.num_nodes == 1

    def among(self, hosts: Sequence[str]) -> "RankPlace":
        """Fill unknown numbers from the hosts of all ranks, in rank order."""
        own = hosts[self.rank]
        order = list(dict.fromkeys(hosts))
        here = [rank for rank, host in enumerate(hosts) if host == own]
        return replace(
            self,
            local_rank=_either(self.local_rank, here.index(self.rank)),
            local_world_size=_either(self.local_world_size, len(here)),
            node_index=_either(self.node_index, order.index(own)),
            num_nodes=_either(self.num_nodes, len(order)),
        )

    @property
    def variables(self) -> dict[str, str]:
        """The known numbers as torchrun's variables."""
        named = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": self.node_index,
            "GROUP_WORLD_SIZE": self.num_nodes,
        }
        return {name: str(value) for name, value in named.items() if value is not None}


ALONE = RankPlace()


def place_of(world: World, env: Mapping[str, str]) -> RankPlace:
    """Return the place from the launcher's variables, or from RANK and WORLD_SIZE."""
    rank, size = world.rank, world.world_size
    if rank is None:  # no launcher: torch's env:// needs only RANK and WORLD_SIZE
        rank, size = number(env, "RANK"), number(env, "WORLD_SIZE")
    if rank is None or size is None or size == 1:
        return ALONE
    if rank >= size:
        raise BadRankVariables(
            f"rank {rank} in a world of {size}; unset RANK and WORLD_SIZE, or fix them"
        )
    if _share_a_host(world, env, size):
        local = _either(world.local_rank, rank)
        return RankPlace(rank, size, local, size, 0, 1)
    nodes = world.nhosts if world.is_rank else world.node_count
    return RankPlace(rank, size, world.local_rank, world.local_size, world.node_rank, nodes)


def _share_a_host(world: World, env: Mapping[str, str], size: int) -> bool:
    if world.is_rank:
        return world.local_size == size or world.nhosts == 1
    return not world.on_every_host and env.get("MASTER_ADDR", "") in LOOPBACK_NAMES


def _either(known: int | None, found: int) -> int:
    return found if known is None else known


class _Settled:
    place: RankPlace | None = None


def settle(place: RankPlace | None) -> None:
    """Set the place of this process; None: read the environment again."""
    _Settled.place = place


def here() -> RankPlace:
    """Return this rank's place: that of `setup_torch`, else from the environment."""
    if _Settled.place is not None:
        return _Settled.place
    env = environment.variables()
    return place_of(find_world(env, host_name()), env)


def get_rank() -> int:
    """Return the rank of this process; 0 without a launcher."""
    return here().rank


def get_world_size(*, total: bool = False, in_use: bool = False) -> int:
    """Return the number of ranks; with `total`, the number that the hosts have devices for."""
    if total and not in_use:
        return get_num_nodes() * get_gpus_per_node()
    return here().world_size


def get_local_rank() -> int:
    """Return the rank of this process among those of its host."""
    return _known(here().local_rank, "local rank")


def get_local_world_size() -> int:
    """Return the number of ranks on this host."""
    return _known(here().local_world_size, "number of ranks on this host")


def get_node_index() -> int:
    """Return the index of this host."""
    return _known(here().node_index, "host's number")


def get_num_nodes(hostfile: str | os.PathLike[str] | None = None) -> int:
    """Return the number of hosts, or of hosts in a host file."""
    if hostfile is not None:
        return len(read_hosts(Path(hostfile)))
    return _known(here().num_nodes, "number of hosts")


def get_gpus_per_node() -> int:
    """Return the ranks that fit on a host: `NGPU_PER_HOST`, its devices, else its ranks."""
    import torch

    found = number(environment.variables(), "NGPU_PER_HOST")
    if found:
        return found
    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    return devices or get_local_world_size()


def _known(value: int | None, what: str) -> int:
    if value is None:
        raise BadRankVariables(f"this launcher does not set the {what}: call setup_torch() first")
    return value
