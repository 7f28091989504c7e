"""Decide from which step a generation goes on, and who gets what from whom for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchloom.rules.escalation import Cause, Mode
from torchloom.rules.pages import Copies, newest_copy, page_for


class Holding(StrEnum):
    """Who has the parameters and the optimizer's state."""

    REPLICATED = "replicated"  # every rank, all of it
    SHARDED = "sharded"  # every rank its part


class Origin(StrEnum):
    """Where the state of a generation comes from."""

    PEER = "peer"  # the member with the highest applied step: rolled forward
    MEMORY = "memory"  # the newest complete copy in the keepers' memory: rolled back
    CHECKPOINT = "checkpoint"
    SCRATCH = "scratch"  # the program's own beginning


class What(StrEnum):
    """What a member is given."""

    STATE = "state"  # of a peer
    PAGE = "page"  # of its own, from the keeper of its node
    PRIVATE = "private"  # a peer's, because its own page is lost
    COPY = "copy"  # its part of the copy of a step
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a member stands, and what its node's keeper has for its seat."""

    applied: int | None = None  # steps; none without a whole state
    pages: frozenset[int] = frozenset()  # steps of its own pages
    copies: Copies = frozenset()
    uses_collectives: bool = False  # its program did, before it came to its steps


@dataclass(frozen=True, slots=True)
class Move:
    """A member gets something: of a step, from a rank or that rank's keeper, or from storage."""

    target: int
    what: What
    step: int
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The step that is done next, and what everybody needs for it."""

    start: int
    origin: Origin
    moves: tuple[Move, ...] = ()
    inexact: tuple[int, ...] = ()  # ranks that go on with what is not their own


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice depends on besides where members stand."""

    holding: Holding
    mode: Mode
    nodes: Mapping[int, str]  # by rank
    checkpoint: int | None = None
    is_exact: bool = False


def elect(standings: Mapping[int, Standing], facts: Facts) -> Plan | Cause:
    """Return how the generation goes on, or why it cannot."""
    if facts.mode is Mode.LIVE and any(one.uses_collectives for one in standings.values()):
        return Cause.PROLOGUE
    if facts.mode is Mode.LIVE and facts.holding is Holding.REPLICATED:
        return roll_forward(standings, facts)
    copy = newest_copy({rank: one.copies for rank, one in standings.items()}, len(standings))
    saved = -1 if facts.checkpoint is None else facts.checkpoint
    if facts.mode is Mode.LIVE and (copy is None or copy < saved):
        return Cause.NO_COPY
    if copy is not None and copy >= saved:
        return roll_back(standings, facts.nodes, copy)
    if facts.checkpoint is not None:
        moves = tuple(Move(rank, What.CHECKPOINT, saved) for rank in sorted(standings))
        return Plan(saved, Origin.CHECKPOINT, moves)
    return Plan(0, Origin.SCRATCH)


def sources(standings: Mapping[int, Standing]) -> list[int]:
    """Return the members with the highest applied step, in order of rank."""
    applied = {rank: one.applied for rank, one in standings.items() if one.applied is not None}
    highest = max(applied.values(), default=None)
    return sorted(rank for rank, step in applied.items() if step == highest)


def roll_forward(standings: Mapping[int, Standing], facts: Facts) -> Plan | Cause:
    """Bring all members to the highest applied step; what each alone knew is in its page."""
    top = sources(standings)
    start = standings[top[0]].applied if top else None
    if start is None:
        return Cause.NO_STATE
    behind = [rank for rank in sorted(standings) if rank not in top]
    moves = [Move(rank, What.STATE, start, _nearest(top, rank, facts.nodes)) for rank in behind]
    page, inexact = page_for(start), []
    for rank in sorted(standings) if page is not None else []:
        is_there = page in standings[rank].pages
        source = rank if is_there else _nearest(top, rank, facts.nodes)
        moves.append(Move(rank, What.PAGE if is_there else What.PRIVATE, start - 1, source))
        inexact += [] if is_there else [rank]
    if inexact and facts.is_exact:
        return Cause.PAGES
    return Plan(start, Origin.PEER, tuple(moves), tuple(inexact))


def roll_back(standings: Mapping[int, Standing], nodes: Mapping[int, str], copy: int) -> Plan:
    """Bring all members back to a copy that is complete: from their own keeper, else another's."""
    moves = []
    for rank in sorted(standings):
        holders = [r for r in sorted(standings) if (rank, copy) in standings[r].copies]
        source = rank if rank in holders else _nearest(holders, rank, nodes)
        moves.append(Move(rank, What.COPY, copy, source))
    return Plan(copy, Origin.MEMORY, tuple(moves))


def _nearest(holders: list[int], rank: int, nodes: Mapping[int, str]) -> int:
    """Return the first who is on the same node, where memory is shared; else the first of all."""
    return next((r for r in holders if nodes[r] == nodes[rank]), holders[0])
