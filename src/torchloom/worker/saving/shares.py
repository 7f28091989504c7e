"""Deal the tensors that all ranks have: each is written by one of them, all write about as much."""

import heapq
from collections.abc import Mapping


def deal(sizes: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Return which rank writes which tensor, the same on every rank that has these sizes.

    The largest first, each to whoever has least so far: no rank writes more than the mean and
    the largest tensor together.
    """
    if world_size == 1:
        return dict.fromkeys(sizes, 0)
    loads = [(0, rank) for rank in range(world_size)]
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + sizes[name], rank))
        owners[name] = rank
    return owners
