"""Decide what follows when members of a generation are lost, or cannot continue together.

The next generation is formed with the survivors. Where that is not possible, all processes restart;
where restarts make no progress, the job has failed.
"""

from dataclasses import replace

from torchloom.messages.membership import Broke, LetStand
from torchloom.rules.lifecycle import exit_reason, node_reason
from torchloom.rules.membership import election
from torchloom.rules.membership.election import Cause, RecoveryLimits, RecoveryMode
from torchloom.rules.membership.events import (
    Exited,
    ForkFailed,
    GenerationBegan,
    GivenUp,
    JobFailed,
    MemberReport,
    Registered,
    RestartBegan,
)
from torchloom.rules.membership.generation import (
    OLDER,
    Effect,
    GenerationPhase,
    GenerationRecord,
    MemberAnswers,
    Next,
    State,
    StoreGeneration,
    complete_if_all,
    due,
    end_process,
    noted,
    order_again,
    to_member,
)
from torchloom.rules.membership.seats import (
    MemberSeat,
    Seats,
    ended,
    put,
    seat_newcomers,
    seat_of,
    survivors,
)

MOST_DOUBLINGS = 4


def exited(state: State, event: Exited | ForkFailed) -> Next:
    """Count a process as lost if it still has its seat; a new one starts in its place."""
    seat = seat_of(state.record.seats, event.who)
    if seat is None or seat.is_gone:
        return state, ()
    code = event.code if isinstance(event, Exited) else 1
    reason = exit_reason(seat.rank, code)
    has_left = code == 0 and not seat.is_ending
    gone = replace(seat, is_gone=True, has_left=has_left)
    came = event.step if isinstance(event, Exited) else 0
    furthest = max(state.record.furthest, came)
    state = noted(state, seats=put(state.record.seats, gone), furthest=furthest)
    if seat.is_ending:
        return _replace_gone(state)
    if has_left and state.record.phase is GenerationPhase.TRAINING:
        return complete_if_all(state, StoreGeneration(state.record))
    return lose(state, reason, is_try=seat.is_new)


def node_lost(state: State, node: str) -> Next:
    """Count all processes of a node as lost, and the pages of its keeper with them."""
    record = state.record
    if node in record.lost:
        return state, ()
    here = [seat for seat in record.seats if seat.node == node and not seat.has_left]
    return _lose_seats(noted(state, lost=record.lost | {node}), here, node_reason(node))


def _lose_seats(state: State, seats: list[MemberSeat], reason: str) -> Next:
    gone = (replace(seat, is_gone=True) for seat in seats)
    state = noted(state, seats=put(state.record.seats, *gone))
    if any(seat.is_up for seat in seats):
        return lose(state, reason)
    return _replace_gone(state) if seats else (state, (StoreGeneration(state.record),))


def registered(state: State, event: Registered) -> Next:
    """Have the node end processes without a seat, and start those that it has room for.

    A new keeper has none of the processes that the one before had.
    """
    node = event.node
    effects: tuple[Effect, ...] = ()
    mine = [s for s in state.record.seats if s.node == node and not (s.has_left or s.is_gone)]
    missing = [seat for seat in mine if seat.who not in event.lives]
    if event.is_fresh and missing:
        state, effects = _lose_seats(state, missing, node_reason(node))
        if state.record.phase is GenerationPhase.FAILED:
            return state, effects
    strays = [who for who in event.lives if seat_of(state.record.seats, who) is None]
    kills = tuple(end_process(state.record, who, OLDER) for who in strays)
    if node in state.record.lost:
        state, after = _replace_gone(noted(state, lost=state.record.lost - {node}))
        effects = (*effects, *after)
    return state, (*effects, *kills)


def given_up(state: State, event: GivenUp) -> Next:
    """End a process that cannot be helped; the others need not wait until it has ended."""
    seat = seat_of(state.record.seats, event.who)
    if seat is None or not seat.is_up:
        return state, ()
    ending = replace(seat, is_ending=True)
    state = noted(state, seats=put(state.record.seats, ending))
    return lose(state, event.reason, is_try=seat.is_new)


def broke(state: State, event: MemberReport, message: Broke) -> Next:
    """Note that a collective broke: a death explains it soon, or the generation ends without one.

    If the same step broke before without a death, it is the program's own exception.
    """
    record = state.record
    seat = seat_of(record.seats, event.who)
    if seat is None or event.generation != record.generation:
        return state, (order_again(state, event.who),)
    if record.phase is GenerationPhase.GATHERING:
        return state, ()
    if not message.is_collective or _is_programs_own(record, state.limits):
        return state, (to_member(record, event.who, LetStand),)
    answers = state.answers
    since = answers.broken_at if answers.broken else state.now
    broken = answers.broken | {seat.rank}
    return replace(state, answers=replace(answers, broken=broken, broken_at=since)), ()


def _is_programs_own(record: GenerationRecord, limits: RecoveryLimits) -> bool:
    """Return whether the same step broke often enough without a death."""
    if record.phase is not GenerationPhase.TRAINING or any(seat.has_left for seat in record.seats):
        return False
    step, times = record.reforms
    return step == record.furthest and times >= limits.reforms


def reform(state: State, reason: str) -> Next:
    """Form the next generation of the same members: none has died, but they cannot continue."""
    record = state.record
    if record.phase is GenerationPhase.TRAINING:
        step, times = record.reforms
        again = times + 1 if step == record.furthest else 1
        state = noted(state, reforms=(record.furthest, again), rejoins=0)
    else:
        state = noted(state, rejoins=record.rejoins + 1)
    return lose(state, reason, is_death=False)


def patience(state: State) -> float:
    """Return how long a broken collective may lack an explanation; longer each time they meet."""
    is_training = state.record.phase is GenerationPhase.TRAINING
    times = 0 if is_training else min(state.record.rejoins, MOST_DOUBLINGS)
    return state.limits.grace * 2.0**times


def lose(state: State, reason: str, is_try: bool = False, is_death: bool = True) -> Next:
    """End the generation, and form the next one with the survivors, or restart."""
    record = state.record
    is_first = record.phase is GenerationPhase.TRAINING
    mode = RecoveryMode.LIVE if is_first else record.mode
    state = noted(state, mode=mode, tries=0 if is_first else record.tries + is_try)
    before_the_first_tick = -state.limits.longest_tick
    waited = before_the_first_tick if is_first else state.answers.waited
    state = replace(state, answers=MemberAnswers(waited=waited))
    if is_first or (is_death and not record.is_explained):
        state = noted(state, reason=reason, is_explained=is_death)
    if mode is RecoveryMode.RESTART and is_death:
        return restart(state, Cause.DIED)
    cause = why_not_live(record.seats) if mode is RecoveryMode.LIVE else None
    if cause := cause or election.worn(state.record.tries, state.limits):
        return restart(state, cause)
    state = _next_generation(state)
    began = GenerationBegan(state.record.generation, mode, reason)
    return state, (StoreGeneration(state.record, (began,)), *due(state))


def why_not_live(seats: Seats) -> Cause | None:
    """Return why the survivors cannot continue with newcomers; None if they can."""
    if any(seat.has_left for seat in seats):
        return Cause.LEFT
    return None if survivors(seats) else Cause.NO_SURVIVOR


def restart(state: State, cause: Cause) -> Next:
    """End all processes and start new ones, unless restarts have made no progress."""
    record = state.record
    stuck = 0 if record.furthest > record.furthest_then else record.stuck + 1
    state = noted(state, stuck=stuck, furthest_then=record.furthest)
    if not election.may_restart(stuck, state.limits):
        return _fail(state, cause)
    seats = ended(record.seats)
    state = noted(
        state, seats=seats, mode=RecoveryMode.RESTART, attempt=record.attempt + 1, tries=0
    )
    state = _next_generation(replace(state, answers=MemberAnswers()))
    generation, attempt = state.record.generation, state.record.attempt
    change = RestartBegan(generation, attempt, cause, record.checkpoint)
    return state, (StoreGeneration(state.record, (change,)), *due(state))


def _fail(state: State, cause: Cause) -> Next:
    state = noted(state, phase=GenerationPhase.FAILED)
    change = JobFailed(state.record.reason, cause)
    return state, (StoreGeneration(state.record, (change,)), *due(state))


def _next_generation(state: State) -> State:
    """Return the state in which the members of one more generation gather."""
    record = state.record
    answers = MemberAnswers(sent_at=state.now, waited=state.answers.waited)
    seats = seat_newcomers(record.seats, state.room, record.lost)
    state = noted(state, generation=record.generation + 1, seats=seats, plan=None)
    return replace(noted(state, phase=GenerationPhase.GATHERING), answers=answers)


def _replace_gone(state: State) -> Next:
    """Start new processes in place of those whose end this generation has waited for."""
    if state.record.phase is GenerationPhase.TRAINING:
        return state, (StoreGeneration(state.record),)
    seats = seat_newcomers(state.record.seats, state.room, state.record.lost)
    state = replace(noted(state, seats=seats), answers=replace(state.answers, sent_at=state.now))
    return state, (StoreGeneration(state.record), *due(state))
