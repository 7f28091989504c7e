"""All-reduce in two levels: within each host, between the hosts, within each host again.

A ring over all ranks sends 2 (n - 1) / n of a tensor over every link between two neighbours, however
many of them are of different hosts. Here every rank has a share of its host's sum, and exchanges
that alone with its counterparts on other hosts. Only point-to-point calls of the default group are
used, so live recovery frees and rebuilds them with it. Sums are in the order of ranks and hosts:
all ranks get the same bits.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchloom.worker.dist.comm import collectives

FLAT, HIERARCHICAL = "flat", "hierarchical"
PROBED = 1 << 20  # numbers
_BUDGET = 0.1  # seconds for each of both ways


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """How the ranks of a run add up gradients: part of the run, since it decides the bits."""

    way: str
    hosts: tuple[int, ...]  # of each rank, by number

    def state(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"way": self.way, "hosts": list(self.hosts)}

    @property
    def levels(self) -> tuple[int, int] | None:
        """The number of hosts and of ranks on each; None where two levels do not fit."""
        counts = {self.hosts.count(host) for host in self.hosts}
        hosts = len(set(self.hosts))
        fits = len(counts) == 1 and hosts > 1 and max(counts) > 1
        return (hosts, counts.pop()) if fits else None

    def sum(self, flat: Tensor) -> None:
        """Add up a tensor over all ranks, in place. A collective call."""
        if self.way == FLAT or flat.numel() < len(self.hosts):
            dist.all_reduce(flat)
        else:
            self._sum_in_levels(flat)

    def _sum_in_levels(self, flat: Tensor) -> None:
        me = dist.get_rank()
        near = [rank for rank, host in enumerate(self.hosts) if host == self.hosts[me]]
        at = near.index(me)
        far = [self._ranks_of(host)[at] for host in sorted(set(self.hosts))]
        shares = list(flat.tensor_split(len(near)))
        _reduce_share(shares, near, me)
        parts = list(shares[at].tensor_split(len(far)))
        _reduce_share(parts, far, me)
        _gather_shares(parts, far, me)
        _gather_shares(shares, near, me)

    def _ranks_of(self, host: int) -> list[int]:
        return [rank for rank, its in enumerate(self.hosts) if its == host]


def _reduce_share(shares: Sequence[Tensor], ranks: Sequence[int], me: int) -> None:
    """Make this rank's share the sum of what all these ranks have of it."""
    own = shares[ranks.index(me)]
    found = {rank: torch.empty_like(own) for rank in ranks if rank != me}
    _moved(dict(zip(ranks, shares, strict=True)), found, me)
    total = torch.zeros_like(own)
    for rank in ranks:
        total += own if rank == me else found[rank]
    own.copy_(total)


def _gather_shares(shares: Sequence[Tensor], ranks: Sequence[int], me: int) -> None:
    """Fill in the shares of the other ranks."""
    own = shares[ranks.index(me)]
    found = {rank: share for rank, share in zip(ranks, shares, strict=True) if rank != me}
    _moved(dict.fromkeys(ranks, own), found, me)


def _moved(given: dict[int, Tensor], found: dict[int, Tensor], me: int) -> None:
    """Send each rank what is for it, and receive what it has for this one."""
    works = [dist.irecv(tensor, rank) for rank, tensor in found.items() if tensor.numel()]
    works += [
        dist.isend(tensor, rank) for rank, tensor in given.items() if rank != me and tensor.numel()
    ]
    for work in works:
        if work is not None:
            work.wait()


def choose(hosts: Sequence[int], device: torch.device) -> tuple[ReducePlan, dict[str, float]]:
    """Return the faster way for ranks on these hosts, and the time of both. A collective call."""
    order = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    places = tuple(order[host] for host in hosts)
    plans = {way: ReducePlan(way, places) for way in (FLAT, HIERARCHICAL)}
    if plans[FLAT].levels is None or dist.get_backend() != "gloo":  # NCCL knows its links
        return plans[FLAT], {}
    tensor = torch.zeros(PROBED, device=device)
    seconds = {way: _time_of(partial(plan.sum, tensor)) for way, plan in plans.items()}
    return plans[min(seconds, key=lambda way: seconds[way])], seconds


def _time_of(run: Callable[[], None]) -> float:
    """Return how long it takes, as the slowest rank sees it, in the time that a probe may take."""
    run()  # connects
    first = _timed(run)
    repeats = max(1, min(16, int(_BUDGET / max(first, 1e-6))))
    return min(_timed(run) for _ in range(repeats))


def _timed(run: Callable[[], None]) -> float:
    dist.barrier()
    since = time.perf_counter()
    run()
    taken = torch.tensor(time.perf_counter() - since, dtype=torch.float64)
    return float(collectives().allreduce(taken, "max"))
