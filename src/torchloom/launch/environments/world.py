"""What an environment says: which hosts a job has, and which rank this process is, if it is one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from torchloom.launch.hosts.host_lists import HostSlots, index_of
from torchloom.specs.dataclass import dataclass

Env = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """The hosts of a job in rank order, and this process' place. Nothing means: not known."""

    flavour: str
    hosts: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()  # ranks a host takes, beside `hosts`
    job_id: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    world_size: int | None = None
    local_size: int | None = None
    node_count: int | None = None  # where the hosts have no names yet
    gpus_per_host: int | None = None
    address: str | None = None  # where peers reach rank 0, when the launcher says so
    port: int | None = None
    on_every_host: bool = False  # the platform started this very process on each host
    inside_step: bool = False  # this shell holds a step of the allocation itself (srun --pty)
    groups: int = (
        1  # parts of a heterogeneous allocation; a launcher needs an option to use them all
    )
    cores: int = 0  # of a host, where the scheduler says that apart from its slots
    elsewhere: bool = False  # found by asking the scheduler from another shell
    notes: tuple[str, ...] = ()

    @property
    def is_rank(self) -> bool:
        """Whether a launcher started this process as one of the ranks."""
        return self.rank is not None

    @property
    def nhosts(self) -> int | None:
        """`NHOSTS`: how many hosts there are; with MPI alone a rank knows its own host only."""
        if self.node_count or self.hosts:
            return self.node_count or len(self.hosts)
        return 1 if self.world_size == self.local_size else None

    @property
    def ngpu_per_host(self) -> int:
        """`NGPU_PER_HOST`: how many ranks a host is meant for: its devices, else its slots."""
        return self.gpus_per_host or max(self.slots, default=0) or self.local_size or 1

    @property
    def size(self) -> int:
        """`WORLD_SIZE`: how many ranks run, or would if all of it was used."""
        if self.world_size is not None:
            return self.world_size
        if self.gpus_per_host or not self.slots:
            return (self.nhosts or 1) * self.ngpu_per_host
        return sum(self.slots)

    @property
    def variables(self) -> dict[str, str]:
        """The numbers by the names that scripts know; what is not known is left out."""
        hosts = {} if self.nhosts is None else {"NHOSTS": str(self.nhosts)}
        return hosts | {"NGPU_PER_HOST": str(self.ngpu_per_host), "WORLD_SIZE": str(self.size)}

    @property
    def head(self) -> str:
        """The address at which a peer reaches rank 0; nothing when no name is known."""
        return self.address or (self.hosts[0] if self.hosts else "")

    def within(self, allocation: "World", own_host: str) -> "World":
        """Add what the allocation around a rank knows; what the rank's launcher said stays.

        Slots are not taken over: a launcher's own helper step overwrites the scheduler's counts.
        """
        hosts = allocation.hosts
        if len(hosts) > self.size or (self.node_count and self.node_count != len(hosts)):
            hosts = ()  # the ranks are on some of them only, and it is unknown on which
        place = index_of(own_host, hosts)
        return replace(
            self,
            hosts=self.hosts or hosts,
            job_id=self.job_id or allocation.job_id,
            node_rank=self.node_rank if self.node_rank is not None else place,
            gpus_per_host=self.gpus_per_host or allocation.gpus_per_host,
            notes=self.notes + allocation.notes,
        )

    def with_hosts(self, hosts: tuple[HostSlots, ...]) -> "World":
        """Put the user's host file in the place of what was found."""
        known = dict(zip(self.hosts, self.slots, strict=False))
        counts = [each.slots or known.get(each.host) or self.gpus_per_host or 1 for each in hosts]
        names = tuple(each.host for each in hosts)
        known_only = replace(self, node_count=None, address=None, notes=())
        return replace(known_only, hosts=names, slots=tuple(counts))


class Flavour(Protocol):
    """One kind of environment."""

    name: str

    def detect(self, env: Env) -> World | None:
        """Return what this environment says, or nothing when it is not there."""

    def doubt(self, env: Env) -> str:
        """Return why variables that are there were not believed; usually nothing."""


class Certain:
    """A flavour that is there or not, without traces that mislead."""

    def doubt(self, env: Env) -> str:
        """Return nothing: there is no half-known state."""
        return ""


def number(env: Env, *names: str) -> int | None:
    """Return the first of these variables that is a whole number from 0."""
    for name in names:
        text = env.get(name, "").strip()
        if text.isascii() and text.isdigit():
            return int(text[:18])
    return None


def rank_world(flavour: str, env: Env, *names: str) -> World | None:
    """Return the world of a rank whose launcher gives (rank, size, local rank, local size)."""
    rank, size, local_rank, local_size = (number(env, name) for name in names)
    if rank is None or size is None:
        return None
    return World(flavour, rank=rank, world_size=size, local_rank=local_rank, local_size=local_size)
