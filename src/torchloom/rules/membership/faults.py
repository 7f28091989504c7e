"""Decide in a rank what caused an exception, and in an agent which orders are still valid."""

from dataclasses import dataclass
from enum import StrEnum

PATIENCE = 2.0  # seconds to wait for news that a peer has caused the exception


class GenerationNews(StrEnum):
    """What a rank knows of its generation since an exception."""

    OVER = "over"  # the weaver says so, or the agent that saw a member die
    STANDS = "stands"  # the weaver knows of the exception, and the generation continues
    NOTHING = "nothing"  # there is no answer yet


class FaultOwner(StrEnum):
    """What caused an exception in a step."""

    PEER = "peer"  # leave the group and wait for the next generation
    OWN = "own"  # raise it
    OPEN = "open"  # not known yet: wait


def fault_owner(news: GenerationNews, waited: float, is_collective: bool) -> FaultOwner:
    """Return what caused an exception, `waited` seconds after it.

    One that cannot come from a collective is the program's own unless the generation is over. One
    that may is the program's own only when the weaver has reported that the generation continues: a
    rank does not fail because the weaver cannot be reached.
    """
    if news is GenerationNews.OVER:
        return FaultOwner.PEER
    is_answered = news is GenerationNews.STANDS or not is_collective
    return FaultOwner.OWN if is_answered and waited >= PATIENCE else FaultOwner.OPEN


@dataclass(frozen=True, slots=True)
class Fence:
    """The highest epoch and generation that a node knows; its keeper remembers them."""

    epoch: int = 0
    generation: int = -1


def admit(fence: Fence, epoch: int, generation: int) -> tuple[Fence, bool]:
    """Return the next fence, and whether an order of this epoch and generation is valid."""
    if epoch < fence.epoch:
        return fence, False
    if generation < fence.generation:
        return Fence(epoch, fence.generation), False
    return Fence(epoch, generation), True
