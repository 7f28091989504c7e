"""Decide how a job whose ranks die goes on with those that live, and when it cannot.

A loss ends the generation. The next one is formed: survivors leave the old group, newcomers come to
their steps, a store is made. When all have arrived it is decided from which step they go on and who
gets what from whom; when all have it, the generation is committed and trains. A loss meanwhile is
one more generation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torchloom.rules import escalation
from torchloom.rules.election import Holding, Origin, Plan
from torchloom.rules.escalation import Limits, Mode
from torchloom.rules.forming import arrived, saved, sealed, store_made, took
from torchloom.rules.generation import (
    Next,
    Persist,
    Phase,
    Record,
    State,
    Talk,
    complete_if_all,
    due,
    noted,
    tell_again,
    tell_the_end,
)
from torchloom.rules.lifecycle import collective_reason
from torchloom.rules.losses import (
    broke,
    exited,
    given_up,
    node_lost,
    patience,
    reform,
    registered,
    restart,
)
from torchloom.rules.membership import Seat, Who, put, seat_of
from torchloom.rules.regroup import (
    Arrived,
    Broke,
    Event,
    Exited,
    Finished,
    ForkFailed,
    GivenUp,
    Kill,
    NodeLost,
    Order,
    Refused,
    Registered,
    Restored,
    Saved,
    Sealed,
    Started,
    StoreLost,
    StoreMade,
    Tick,
)


def begin(
    holding: Holding, nodes: tuple[str, ...], room: Mapping[str, int], limits: Limits
) -> State:
    """Return the state of a job whose first processes are to be started on these nodes."""
    seats = tuple(Seat(rank, node, is_new=True) for rank, node in enumerate(nodes))
    record = Record(seats, mode=Mode.RESTART, reason="begun")
    return State(holding, dict(room), record, limits)


def trains(
    holding: Holding,
    lives: Iterable[Who],
    room: Mapping[str, int],
    generation: int,
    attempt: int,
    start: int,
    limits: Limits,
) -> State:
    """Return the state of a job whose processes train already, from `start` on, and said so."""
    seats = tuple(Seat(who.rank, who.node, who.life) for who in sorted(lives))
    plan = Plan(start, Origin.SCRATCH)
    record = Record(seats, generation, attempt, Phase.TRAINING, plan=plan, furthest=start)
    talk = Talk(done=frozenset(seat.rank for seat in seats), has_store=True)
    return State(holding, dict(room), record, limits, talk)


def is_quiet(state: State) -> bool:
    """Tell whether nothing has to be said, and nothing happens by time alone."""
    record, talk = state.record, state.talk
    if record.phase is not Phase.TRAINING or talk.broken:
        return record.phase in (Phase.COMPLETE, Phase.FAILED)
    return not due(state)


def restore(state: State, record: Record, now: float) -> State:
    """Return the state with which a weaver begins that finds this record; it asks all again."""
    return State(state.holding, state.room, record, state.limits, now=now)


def step(state: State, event: Event) -> Next:
    """Take in one event; return the new state and what to do, in order."""
    if state.record.phase in (Phase.COMPLETE, Phase.FAILED):
        return _after_the_end(state, event)
    match event:
        case Exited() | ForkFailed():
            return exited(state, event)
        case NodeLost():
            return node_lost(state, event.node)
        case Registered():
            return registered(state, event)
        case GivenUp():
            return given_up(state, event)
        case Broke():
            return broke(state, event)
        case Arrived():
            return arrived(state, event)
        case Restored() | Refused():
            return took(state, event)
        case Started():
            return _started(state, event), ()
        case Finished():
            return _finished(state, event)
        case StoreMade():
            return store_made(state, event)
        case StoreLost():
            return _store_lost(state, event)
        case Sealed():
            return sealed(state, event)
        case Saved():
            return saved(state, event.step)
        case Tick():
            return _tick(state, event.now)


def _started(state: State, event: Started) -> State:
    seat = seat_of(state.record.seats, event.who)
    if seat is None or not _is_trained_in(state, event.generation):
        return state
    return replace(state, talk=replace(state.talk, done=state.talk.done | {seat.rank}))


def _finished(state: State, event: Finished) -> Next:
    seat = seat_of(state.record.seats, event.who)
    if seat is None or not _is_trained_in(state, event.generation):
        return state, tell_again(state, event.who)
    finished = state.talk.finished | {seat.rank}
    done = state.talk.done | {seat.rank}
    return complete_if_all(replace(state, talk=replace(state.talk, finished=finished, done=done)))


def _is_trained_in(state: State, generation: int) -> bool:
    record = state.record
    return record.phase is Phase.TRAINING and generation == record.generation


def _store_lost(state: State, event: StoreLost) -> Next:
    """Form a generation with another store, if this one's was there."""
    was_there = state.talk.has_store or state.record.phase is not Phase.GATHERING
    is_ours = event.generation == state.record.generation
    return reform(state, "store_lost") if is_ours and was_there else (state, ())


def _tick(state: State, now: float) -> Next:
    """Say again what had no answer; move on when a limit has passed."""
    looked = min(max(0.0, now - state.now), state.limits.longest_look)
    talk = state.talk
    if talk.broken and now - talk.broken_at >= patience(state):
        return reform(replace(state, now=now), collective_reason(min(talk.broken)))
    if state.record.phase is not Phase.TRAINING:
        talk = replace(talk, waited=talk.waited + looked)
        if cause := escalation.overdue(state.record.mode, talk.waited, state.limits):
            return restart(replace(state, now=now, talk=talk), cause)
    if now - talk.said_at < state.limits.resend:
        return replace(state, now=now, talk=talk), ()
    state = replace(state, now=now, talk=replace(talk, said_at=now))
    return state, due(state)


def _after_the_end(state: State, event: Event) -> Next:
    """Answer whoever has not heard of the end, and end whoever cannot."""
    record = state.record
    match event:
        case Finished() | Broke() | Arrived() | Restored() | Started():
            return state, tell_again(state, event.who)
        case Registered():
            orders = tuple(tell_the_end(state, who) for who in event.lives)
            return _note_end(state, lost=record.lost - {event.node}, orders=orders)
        case NodeLost():
            return _note_end(state, lost=record.lost | {event.node})
        case Exited() if seat := seat_of(record.seats, event.who):
            return _note_end(state, seats=put(record.seats, replace(seat, is_gone=True)))
        case GivenUp() if seat := seat_of(record.seats, event.who):
            seats = put(record.seats, replace(seat, is_ending=True))
            return _note_end(state, seats=seats, orders=(Kill(event.who, event.reason),))
        case Tick() if event.now - state.talk.said_at >= state.limits.resend:
            state = replace(state, now=event.now, talk=replace(state.talk, said_at=event.now))
            return state, due(state)
        case _:
            return state, ()


def _note_end(state: State, orders: tuple[Order, ...] = (), **changes: object) -> Next:
    """Store what changed, if anything did."""
    after = noted(state, **changes)
    return after, ((Persist(after.record), *orders) if after != state else orders)
