"""Say what the keepers' memory must hold for a run to go on: pages of ranks, copies of shards.

A page has what one rank alone knows (buffers, loader cursor, scaler), as it is after the forward
pass of a step. A rank that has finished the all-reduce of step s may be at the page of s+1 while
the others still wait for s; if it dies then, its page of s-1 is needed. So there are three slots.
"""

from collections.abc import Mapping

SLOTS = 3
Copies = frozenset[tuple[int, int]]  # (whose shard, step)


def slot_of(step: int) -> int:
    """Return the slot of a rank's pages that has this step."""
    return step % SLOTS


def page_for(start: int) -> int | None:
    """Return the step whose page a rank needs to begin step `start`; none at the first one."""
    return start - 1 if start > 0 else None


def inherits(last: int, life: int) -> bool:
    """Tell whether what a node has for a rank is that of the life before; else it is stale."""
    return last == life - 1


def newest_copy(held: Mapping[int, Copies], ranks: int) -> int | None:
    """Return the newest step of which the shard of every rank is held by somebody."""
    holders: dict[int, set[int]] = {}
    for copies in held.values():
        for whose, step in copies:
            holders.setdefault(step, set()).add(whose)
    return max((step for step, whose in holders.items() if len(whose) == ranks), default=None)
