"""Decide in a rank whose fault an exception is, and in an agent whose word still counts."""

from dataclasses import dataclass
from enum import StrEnum

PATIENCE = 2.0  # seconds for the word that makes an exception a peer's


class GenerationNews(StrEnum):
    """What a rank has heard of its generation since an exception."""

    OVER = "over"  # the weaver, or the agent that saw a member of it die
    STANDS = "stands"  # the weaver knows of the exception and lets the generation stand
    NOTHING = "nothing"  # who would know cannot be reached, or thinks about it


class FaultOwner(StrEnum):
    """Whose an exception in a step is."""

    PEER = "peer"  # leave the group and wait for the next generation
    OWN = "own"  # raise it
    OPEN = "open"  # wait on


def whose(heard: GenerationNews, waited: float, is_collective: bool) -> FaultOwner:
    """Tell whose an exception is after so many seconds.

    One that cannot come from a collective is the program's unless the generation is over. One that
    may is so only when the weaver has said that the generation stands: a rank that hears nothing
    because the weaver is away does not die of it.
    """
    if heard is GenerationNews.OVER:
        return FaultOwner.PEER
    is_answered = heard is GenerationNews.STANDS or not is_collective
    return FaultOwner.OWN if is_answered and waited >= PATIENCE else FaultOwner.OPEN


@dataclass(frozen=True, slots=True)
class Fence:
    """The highest epoch and generation that a node has heard of; its keeper remembers them."""

    epoch: int = 0
    generation: int = -1


def admit(fence: Fence, epoch: int, generation: int) -> tuple[Fence, bool]:
    """Tell whether an order may be carried out; nothing of an older weaver or generation is."""
    if epoch < fence.epoch:
        return fence, False
    if generation < fence.generation:
        return Fence(epoch, fence.generation), False
    return Fence(epoch, generation), True
