"""Decide from which step a generation continues, and which state each member gets for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchloom.messages.membership import Given

SLOTS = 3


Copies = frozenset[tuple[int, int]]  # (whose shard, step)


def slot_of(step: int) -> int:
    """Return the slot of a rank's pages that has this step."""
    return step % SLOTS


def page_for(start: int) -> int | None:
    """Return the step whose page a rank needs to begin step `start`; none at the first one."""
    return start - 1 if start > 0 else None


def inherits(last: int, number: int) -> bool:
    """Return whether what a node has for a rank is of the process before; else it is stale."""
    return last == number - 1


def newest_copy(held: Mapping[int, Copies], ranks: int) -> int | None:
    """Return the newest step of which every rank's shard is held by some rank."""
    holders: dict[int, set[int]] = {}
    for copies in held.values():
        for whose, step in copies:
            holders.setdefault(step, set()).add(whose)
    return max((step for step, whose in holders.items() if len(whose) == ranks), default=None)


class RecoveryMode(StrEnum):
    """How a job recovers from a loss."""

    LIVE = "live"  # survivors stay up
    RESTART = "restart"  # every process is a new one


class Cause(StrEnum):
    """Why a job cannot recover in its present mode."""

    NO_SURVIVOR = "no_survivor"
    LIVE_WAIT = "live_wait"  # members did not meet in time
    TRIES = "tries"  # too many generations came to nothing
    REPEATS = "repeats"  # one rank dies again and again in one step
    PROLOGUE = (
        "prologue_collectives"  # the program's set-up uses collectives with ranks that are past it
    )
    PAGES = "pages_lost"  # a rank's private state was lost with its node
    NO_STATE = "no_state"  # no member has a whole state
    NO_COPY = "no_copy"  # of sharded state no copy is complete, or a checkpoint is newer
    LEFT = "left"  # the program of a member has ended
    DIED = "died"  # a process of a restart did
    RESTART_WAIT = "restart_wait"


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """How long and how often each is tried, in seconds and times."""

    live_wait: float = 60.0  # from the first loss until a generation trains
    restart_wait: float = 120.0
    tries: int = 5  # generations of one recovery that were met in, or newcomers that died
    repeats: int = 4  # recoveries in a row in which one rank was lost in one step
    reforms: int = 2  # generations in a row that broke in one step without a death
    restarts: int = 3  # in a row that got no further than those before
    grace: float = 1.0  # between the report that a collective broke and its consequences
    resend: float = 0.5  # what has no answer is sent again
    longest_tick: float = 1.0  # what counts of the time between two ticks, at most
    is_exact: bool = False  # restart rather than continue with private state of another rank


def overdue(mode: RecoveryMode, waited: float, limits: RecoveryLimits) -> Cause | None:
    """Return the limit that a recovery has passed."""
    if mode is RecoveryMode.LIVE:
        return Cause.LIVE_WAIT if waited >= limits.live_wait else None
    return Cause.RESTART_WAIT if waited >= limits.restart_wait else None


def worn(tries: int, limits: RecoveryLimits) -> Cause | None:
    """Return the limit that the number of failed generations has passed."""
    return Cause.TRIES if tries >= limits.tries else None


def may_restart(stuck: int, limits: RecoveryLimits) -> bool:
    """Return whether to restart again, after `stuck` restarts that made no progress."""
    return stuck < limits.restarts


class Holding(StrEnum):
    """Which rank has the parameters and the optimizer's state."""

    REPLICATED = "replicated"  # every rank, all of it
    SHARDED = "sharded"  # every rank its part


class StateOrigin(StrEnum):
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
class MemberPosition:
    """How far a member is, and what its node's keeper has for its rank."""

    applied: int | None = None  # steps; none without a whole state
    pages: frozenset[int] = frozenset()  # steps of its own pages
    copies: Copies = frozenset()
    uses_collectives: bool = False  # its program did, before it came to its steps


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The step that is done next, and what each member needs for it."""

    start: int
    origin: StateOrigin
    moves: tuple[Given, ...] = ()
    inexact: tuple[int, ...] = ()  # ranks that continue with private state of another rank


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice depends on besides the members' positions."""

    holding: Holding
    mode: RecoveryMode
    nodes: Mapping[int, str]  # by rank
    checkpoint: int | None = None
    is_exact: bool = False


def elect(standings: Mapping[int, MemberPosition], facts: Facts) -> GenerationPlan | Cause:
    """Return how the generation continues, or why it cannot."""
    if facts.mode is RecoveryMode.LIVE and any(one.uses_collectives for one in standings.values()):
        return Cause.PROLOGUE
    if facts.mode is RecoveryMode.LIVE and facts.holding is Holding.REPLICATED:
        return roll_forward(standings, facts)
    copy = newest_copy({rank: one.copies for rank, one in standings.items()}, len(standings))
    saved = -1 if facts.checkpoint is None else facts.checkpoint
    if facts.mode is RecoveryMode.LIVE and (copy is None or copy < saved):
        return Cause.NO_COPY
    if copy is not None and copy >= saved:
        return roll_back(standings, facts.nodes, copy)
    if facts.checkpoint is not None:
        moves = tuple(Given(rank, What.CHECKPOINT, saved) for rank in sorted(standings))
        return GenerationPlan(saved, StateOrigin.CHECKPOINT, moves)
    return GenerationPlan(0, StateOrigin.SCRATCH)


def sources(standings: Mapping[int, MemberPosition]) -> list[int]:
    """Return the members with the highest applied step, in order of rank."""
    applied = {rank: one.applied for rank, one in standings.items() if one.applied is not None}
    highest = max(applied.values(), default=None)
    return sorted(rank for rank, step in applied.items() if step == highest)


def roll_forward(standings: Mapping[int, MemberPosition], facts: Facts) -> GenerationPlan | Cause:
    """Bring all members to the highest applied step; the private state of each is in its page."""
    top = sources(standings)
    start = standings[top[0]].applied if top else None
    if start is None:
        return Cause.NO_STATE
    behind = [rank for rank in sorted(standings) if rank not in top]
    moves = [Given(rank, What.STATE, start, _nearest(top, rank, facts.nodes)) for rank in behind]
    page, inexact = page_for(start), []
    for rank in sorted(standings) if page is not None else []:
        is_there = page in standings[rank].pages
        source = rank if is_there else _nearest(top, rank, facts.nodes)
        moves.append(Given(rank, What.PAGE if is_there else What.PRIVATE, start - 1, source))
        inexact += [] if is_there else [rank]
    if inexact and facts.is_exact:
        return Cause.PAGES
    return GenerationPlan(start, StateOrigin.PEER, tuple(moves), tuple(inexact))


def roll_back(
    standings: Mapping[int, MemberPosition], nodes: Mapping[int, str], copy: int
) -> GenerationPlan:
    """Bring all members back to a copy that is complete: from their own keeper, else another's."""
    moves = []
    for rank in sorted(standings):
        holders = [r for r in sorted(standings) if (rank, copy) in standings[r].copies]
        source = rank if rank in holders else _nearest(holders, rank, nodes)
        moves.append(Given(rank, What.COPY, copy, source))
    return GenerationPlan(copy, StateOrigin.MEMORY, tuple(moves))


def _nearest(holders: list[int], rank: int, nodes: Mapping[int, str]) -> int:
    """Return the first holder on the same node, where memory is shared; else the first of all."""
    return next((r for r in holders if nodes[r] == nodes[rank]), holders[0])
