"""Form a generation: wait for its members, decide what each needs, let it act when they have it."""

from collections.abc import Container
from dataclasses import replace

from torchloom.rules.election import Facts, Holding, Origin, Plan, elect
from torchloom.rules.escalation import Cause, Mode
from torchloom.rules.generation import (
    Next,
    Persist,
    Phase,
    Record,
    State,
    Talk,
    due,
    noted,
    tell_again,
)
from torchloom.rules.losses import lose, restart
from torchloom.rules.membership import Seats, seat_of, settled
from torchloom.rules.regroup import Arrived, Commit, Refused, Restored, Sealed, StoreMade


def arrived(state: State, event: Arrived) -> Next:
    record = state.record
    seat = seat_of(record.seats, event.who)
    if seat is None or event.generation != record.generation:
        return state, tell_again(state, event.who)
    if record.phase is not Phase.GATHERING or not seat.is_up:
        return state, ()
    standings = {**state.talk.standings, seat.rank: event.standing}
    state = replace(state, talk=replace(state.talk, standings=standings))
    return _plan_if_all(state)


def store_made(state: State, event: StoreMade) -> Next:
    is_ours = event.generation == state.record.generation
    if not is_ours or state.record.phase is not Phase.GATHERING:
        return state, ()
    return _plan_if_all(replace(state, talk=replace(state.talk, has_store=True)))


def sealed(state: State, event: Sealed) -> Next:
    """Know the newest checkpoint: no longer one that turned out to be damaged."""
    is_ours = event.generation == state.record.generation
    if not is_ours or state.record.phase is not Phase.GATHERING:
        return (state, ()) if event.newest is None else saved(state, event.newest)
    is_news = event.newest != state.record.checkpoint
    state = noted(state, checkpoint=event.newest)
    state, after = _plan_if_all(replace(state, talk=replace(state.talk, is_sealed=True)))
    stored = (Persist(state.record),) if is_news and not after else ()
    return state, (*stored, *after)


def saved(state: State, step: int) -> Next:
    """Know of a newer checkpoint."""
    if state.record.checkpoint is not None and step <= state.record.checkpoint:
        return state, ()
    state = noted(state, checkpoint=step, furthest=max(state.record.furthest, step))
    return state, (Persist(state.record),)


def _plan_if_all(state: State) -> Next:
    """Decide how the generation goes on, once all its members are here."""
    record, talk = state.record, state.talk
    is_peers = record.mode is Mode.LIVE and state.holding is Holding.REPLICATED
    if not talk.has_store or not (talk.is_sealed or is_peers):
        return state, ()
    if absent(record.seats, talk.standings):
        return state, ()
    nodes = {seat.rank: seat.node for seat in record.seats}
    facts = Facts(state.holding, record.mode, nodes, record.checkpoint, state.limits.is_exact)
    plan = elect(talk.standings, facts)
    if isinstance(plan, Plan) and _is_repeated(state, plan.start):
        plan = Cause.REPEATS
    if isinstance(plan, Cause):
        return restart(state, plan)
    applied = [one.applied or 0 for one in talk.standings.values()]
    furthest = max(record.furthest, plan.start, *applied)
    state = noted(_doubted(state, plan), phase=Phase.MOVING, plan=plan, furthest=furthest)
    state = replace(state, talk=Talk(has_store=True, said_at=state.now, waited=talk.waited))
    return state, (Persist(state.record), *due(state))


def _doubted(state: State, plan: Plan) -> State:
    """Remember who goes on with what is not its own, until all go back to before that.

    A generation that came to nothing may have left it in a page that looks like any other.
    """
    before = state.record.inexact
    if plan.origin is not Origin.PEER and plan.start < state.record.inexact_at:
        before = ()
    at = state.record.inexact_at if before else plan.start
    inexact = tuple(sorted({*before, *plan.inexact}))
    return noted(state, inexact=inexact, inexact_at=at if inexact else 0)


def absent(seats: Seats, answered: Container[int]) -> list[int]:
    """Return the ranks that have not arrived, or not answered."""
    return [seat.rank for seat in seats if not (seat.is_up and seat.rank in answered)]


def _is_repeated(state: State, start: int) -> bool:
    """Tell whether a newcomer is for a rank that was lost too often in this step."""
    if state.record.mode is Mode.RESTART:
        return False
    limit, new = state.limits.repeats, [s.rank for s in state.record.seats if s.is_new]
    return any(r in new and s == start and n >= limit for r, s, n in state.record.strikes)


def took(state: State, event: Restored | Refused) -> Next:
    """Take in that a member has what it needs, or cannot have it; commit when all have."""
    record = state.record
    seat = seat_of(record.seats, event.who)
    if seat is None or event.generation != record.generation:
        return state, tell_again(state, event.who)
    if record.phase is not Phase.MOVING:
        return state, ()
    if isinstance(event, Refused):
        return lose(state, f"refused_rank_{seat.rank}", is_try=True, is_death=False)
    state = replace(state, talk=replace(state.talk, done=state.talk.done | {seat.rank}))
    return (state, ()) if absent(record.seats, state.talk.done) else _commit(state)


def _commit(state: State) -> Next:
    """Let the generation act: all its members stand at the same step."""
    record, plan = state.record, state.record.plan
    assert plan is not None, "only a generation with a plan is committed"
    seats = settled(record.seats)
    strikes = record.strikes if record.mode is Mode.RESTART else _strikes(record, plan.start)
    state = noted(state, phase=Phase.TRAINING, seats=seats, strikes=strikes)
    state = noted(state, tries=0, rejoins=0)
    state = replace(state, talk=Talk(has_store=True, said_at=state.now))
    told = Commit(record.generation, plan, record.inexact)
    return state, (Persist(state.record, (told,)), *due(state))


def _strikes(record: Record, start: int) -> tuple[tuple[int, int, int], ...]:
    """Count for each rank that was replaced how often that was in this very step."""
    before = {(rank, step): times for rank, step, times in record.strikes}
    new = [seat.rank for seat in record.seats if seat.is_new]
    kept = tuple(strike for strike in record.strikes if strike[0] not in new)
    return (*kept, *((rank, start, before.get((rank, start), 0) + 1) for rank in new))
