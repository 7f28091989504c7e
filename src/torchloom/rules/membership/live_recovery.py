"""Decide how a job that lost ranks continues with the survivors, and when it cannot.

A loss ends the generation. The next one is formed: survivors leave the old group, newcomers reach
their steps, a store is made. When all have arrived, the step is chosen from which they continue,
and which state each member gets; when all have it, the generation is committed and trains. A loss
meanwhile is one more generation.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    NotRestored,
    Restored,
    Training,
)
from torchloom.rules.lifecycle import collective_reason
from torchloom.rules.membership import election
from torchloom.rules.membership.election import (
    Cause,
    Facts,
    GenerationPlan,
    Holding,
    MemberPosition,
    RecoveryLimits,
    RecoveryMode,
    StateOrigin,
    elect,
)
from torchloom.rules.membership.events import (
    CheckpointSaved,
    Event,
    Exited,
    ForkFailed,
    GenerationCommitted,
    GivenUp,
    MemberNodeLost,
    MemberReport,
    Order,
    Registered,
    Sealed,
    StoreLost,
    StoreMade,
    Tick,
)
from torchloom.rules.membership.generation import (
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
    order_end,
)
from torchloom.rules.membership.losses import (
    broke,
    exited,
    given_up,
    lose,
    node_lost,
    patience,
    reform,
    registered,
    restart,
)
from torchloom.rules.membership.seats import MemberProcess, MemberSeat, Seats, put, seat_of, settled


def _arrived(state: State, event: MemberReport, message: Arrived) -> Next:
    record = state.record
    seat = seat_of(record.seats, event.who)
    if seat is None or event.generation != record.generation:
        return state, (order_again(state, event.who),)
    if record.phase is not GenerationPhase.GATHERING or not seat.is_up:
        return state, ()
    position = MemberPosition(
        message.applied, frozenset(message.pages), event.copies, bool(message.why)
    )
    standings = {**state.answers.standings, seat.rank: position}
    state = replace(state, answers=replace(state.answers, standings=standings))
    return _plan_if_all(state)


def store_made(state: State, event: StoreMade) -> Next:
    is_ours = event.generation == state.record.generation
    if not is_ours or state.record.phase is not GenerationPhase.GATHERING:
        return state, ()
    return _plan_if_all(replace(state, answers=replace(state.answers, has_store=True)))


def sealed(state: State, event: Sealed) -> Next:
    """Note the newest checkpoint; one that turned out to be damaged no longer is."""
    is_ours = event.generation == state.record.generation
    if not is_ours or state.record.phase is not GenerationPhase.GATHERING:
        return (state, ()) if event.newest is None else saved(state, event.newest)
    is_news = event.newest != state.record.checkpoint
    state = noted(state, checkpoint=event.newest)
    state, after = _plan_if_all(replace(state, answers=replace(state.answers, is_sealed=True)))
    stored = (StoreGeneration(state.record),) if is_news and not after else ()
    return state, (*stored, *after)


def saved(state: State, step: int) -> Next:
    """Note a newer checkpoint."""
    if state.record.checkpoint is not None and step <= state.record.checkpoint:
        return state, ()
    state = noted(state, checkpoint=step, furthest=max(state.record.furthest, step))
    return state, (StoreGeneration(state.record),)


def _plan_if_all(state: State) -> Next:
    """Decide how the generation continues, once all its members have arrived."""
    record, answers = state.record, state.answers
    is_peers = record.mode is RecoveryMode.LIVE and state.holding is Holding.REPLICATED
    if not answers.has_store or not (answers.is_sealed or is_peers):
        return state, ()
    if absent(record.seats, answers.standings):
        return state, ()
    nodes = {seat.rank: seat.node for seat in record.seats}
    facts = Facts(state.holding, record.mode, nodes, record.checkpoint, state.limits.is_exact)
    plan = elect(answers.standings, facts)
    if isinstance(plan, GenerationPlan) and _is_repeated(state, plan.start):
        plan = Cause.REPEATS
    if isinstance(plan, Cause):
        return restart(state, plan)
    applied = [one.applied or 0 for one in answers.standings.values()]
    furthest = max(record.furthest, plan.start, *applied)
    state = noted(_doubted(state, plan), phase=GenerationPhase.MOVING, plan=plan, furthest=furthest)
    state = replace(
        state, answers=MemberAnswers(has_store=True, sent_at=state.now, waited=answers.waited)
    )
    return state, (StoreGeneration(state.record), *due(state))


def _doubted(state: State, plan: GenerationPlan) -> State:
    """Remember which ranks continue with private state of another, until all go back behind that.

    A generation that was never committed may have left such state in a page.
    """
    before = state.record.inexact
    if plan.origin is not StateOrigin.PEER and plan.start < state.record.inexact_at:
        before = ()
    at = state.record.inexact_at if before else plan.start
    inexact = tuple(sorted({*before, *plan.inexact}))
    return noted(state, inexact=inexact, inexact_at=at if inexact else 0)


def absent(seats: Seats, answered: Container[int]) -> list[int]:
    """Return the ranks that have not arrived, or not answered."""
    return [seat.rank for seat in seats if not (seat.is_up and seat.rank in answered)]


def _is_repeated(state: State, start: int) -> bool:
    """Return whether a newcomer is for a rank that was lost too often in this step."""
    if state.record.mode is RecoveryMode.RESTART:
        return False
    limit, new = state.limits.repeats, [s.rank for s in state.record.seats if s.is_new]
    return any(r in new and s == start and n >= limit for r, s, n in state.record.strikes)


def _restored(state: State, event: MemberReport) -> Next:
    """Note that a member has what it needs, or cannot have it; commit when all have."""
    record = state.record
    seat = seat_of(record.seats, event.who)
    if seat is None or event.generation != record.generation:
        return state, (order_again(state, event.who),)
    if record.phase is not GenerationPhase.MOVING:
        return state, ()
    if isinstance(event.message, NotRestored):
        return lose(state, f"refused_rank_{seat.rank}", is_try=True, is_death=False)
    state = replace(state, answers=replace(state.answers, done=state.answers.done | {seat.rank}))
    return (state, ()) if absent(record.seats, state.answers.done) else _commit(state)


def _commit(state: State) -> Next:
    """Commit the generation: all its members are at the same step."""
    record, plan = state.record, state.record.plan
    assert plan is not None, "only a generation with a plan is committed"
    seats = settled(record.seats)
    strikes = (
        record.strikes if record.mode is RecoveryMode.RESTART else _strikes(record, plan.start)
    )
    state = noted(state, phase=GenerationPhase.TRAINING, seats=seats, strikes=strikes)
    state = noted(state, tries=0, rejoins=0)
    state = replace(state, answers=MemberAnswers(has_store=True, sent_at=state.now))
    change = GenerationCommitted(record.generation, plan, record.inexact)
    return state, (StoreGeneration(state.record, (change,)), *due(state))


def _strikes(record: GenerationRecord, start: int) -> tuple[tuple[int, int, int], ...]:
    """Count for each rank that was replaced how often that was in this very step."""
    before = {(rank, step): times for rank, step, times in record.strikes}
    new = [seat.rank for seat in record.seats if seat.is_new]
    kept = tuple(strike for strike in record.strikes if strike[0] not in new)
    return (*kept, *((rank, start, before.get((rank, start), 0) + 1) for rank in new))


def begin(
    holding: Holding, nodes: tuple[str, ...], room: Mapping[str, int], limits: RecoveryLimits
) -> State:
    """Return the state of a job whose first processes are to be started on these nodes."""
    seats = tuple(MemberSeat(rank, node, is_new=True) for rank, node in enumerate(nodes))
    record = GenerationRecord(seats, mode=RecoveryMode.RESTART, reason="begun")
    return State(holding, dict(room), record, limits)


def trains(
    holding: Holding,
    lives: Iterable[MemberProcess],
    room: Mapping[str, int],
    generation: int,
    attempt: int,
    start: int,
    limits: RecoveryLimits,
) -> State:
    """Return the state of a job whose processes report that they train, from `start` on."""
    seats = tuple(MemberSeat(who.rank, who.node, who.life) for who in sorted(lives))
    plan = GenerationPlan(start, StateOrigin.SCRATCH)
    record = GenerationRecord(
        seats, generation, attempt, GenerationPhase.TRAINING, plan=plan, furthest=start
    )
    answers = MemberAnswers(done=frozenset(seat.rank for seat in seats), has_store=True)
    return State(holding, dict(room), record, limits, answers)


def is_quiet(state: State) -> bool:
    """Return whether nothing has to be sent, and nothing happens by time alone."""
    record, answers = state.record, state.answers
    if record.phase is not GenerationPhase.TRAINING or answers.broken:
        return record.phase in (GenerationPhase.COMPLETE, GenerationPhase.FAILED)
    return not due(state)


def restore(state: State, record: GenerationRecord, now: float) -> State:
    """Return the state with which a weaver starts from a stored record, without any answers."""
    return State(state.holding, state.room, record, state.limits, now=now)


def step(state: State, event: Event) -> Next:
    """Handle one event; return the new state and what to do, in order."""
    if state.record.phase in (GenerationPhase.COMPLETE, GenerationPhase.FAILED):
        return _after_the_end(state, event)
    match event:
        case MemberReport():
            return _reported(state, event)
        case Exited() | ForkFailed():
            return exited(state, event)
        case MemberNodeLost():
            return node_lost(state, event.node)
        case Registered():
            return registered(state, event)
        case GivenUp():
            return given_up(state, event)
        case StoreMade():
            return store_made(state, event)
        case StoreLost():
            return _store_lost(state, event)
        case Sealed():
            return sealed(state, event)
        case CheckpointSaved():
            return saved(state, event.step)
        case Tick():
            return _tick(state, event.now)


def _reported(state: State, event: MemberReport) -> Next:
    """Handle a message of a member."""
    match event.message:
        case Broke() as message:
            return broke(state, event, message)
        case Arrived() as message:
            return _arrived(state, event, message)
        case Restored() | NotRestored():
            return _restored(state, event)
        case Training():
            return _trains(state, event), ()
        case Finished():
            return _finished(state, event)


def _trains(state: State, event: MemberReport) -> State:
    seat = seat_of(state.record.seats, event.who)
    if seat is None or not _is_trained_in(state, event.generation):
        return state
    return replace(state, answers=replace(state.answers, done=state.answers.done | {seat.rank}))


def _finished(state: State, event: MemberReport) -> Next:
    seat = seat_of(state.record.seats, event.who)
    if seat is None or not _is_trained_in(state, event.generation):
        return state, (order_again(state, event.who),)
    finished = state.answers.finished | {seat.rank}
    done = state.answers.done | {seat.rank}
    return complete_if_all(
        replace(state, answers=replace(state.answers, finished=finished, done=done))
    )


def _is_trained_in(state: State, generation: int) -> bool:
    record = state.record
    return record.phase is GenerationPhase.TRAINING and generation == record.generation


def _store_lost(state: State, event: StoreLost) -> Next:
    """Form a generation with another store, if this one's was there."""
    was_there = state.answers.has_store or state.record.phase is not GenerationPhase.GATHERING
    is_ours = event.generation == state.record.generation
    return reform(state, "store_lost") if is_ours and was_there else (state, ())


def _tick(state: State, now: float) -> Next:
    """Send again what had no answer; restart when a limit has passed."""
    passed = min(max(0.0, now - state.now), state.limits.longest_tick)
    answers = state.answers
    if answers.broken and now - answers.broken_at >= patience(state):
        return reform(replace(state, now=now), collective_reason(min(answers.broken)))
    if state.record.phase is not GenerationPhase.TRAINING:
        answers = replace(answers, waited=answers.waited + passed)
        if cause := election.overdue(state.record.mode, answers.waited, state.limits):
            return restart(replace(state, now=now, answers=answers), cause)
    if now - answers.sent_at < state.limits.resend:
        return replace(state, now=now, answers=answers), ()
    state = replace(state, now=now, answers=replace(answers, sent_at=now))
    return state, due(state)


def _after_the_end(state: State, event: Event) -> Next:
    """Answer a process that does not know of the end, and end one that cannot finish."""
    record = state.record
    match event:
        case MemberReport() if not isinstance(event.message, NotRestored):
            return state, (order_again(state, event.who),)
        case Registered():
            orders = tuple(order_end(record, who) for who in event.lives)
            return _note_end(state, lost=record.lost - {event.node}, orders=orders)
        case MemberNodeLost():
            return _note_end(state, lost=record.lost | {event.node})
        case Exited() if seat := seat_of(record.seats, event.who):
            return _note_end(state, seats=put(record.seats, replace(seat, is_gone=True)))
        case GivenUp() if seat := seat_of(record.seats, event.who):
            seats = put(record.seats, replace(seat, is_ending=True))
            return _note_end(
                state, seats=seats, orders=(end_process(record, event.who, event.reason),)
            )
        case Tick() if event.now - state.answers.sent_at >= state.limits.resend:
            state = replace(state, now=event.now, answers=replace(state.answers, sent_at=event.now))
            return state, due(state)
        case _:
            return state, ()


def _note_end(state: State, orders: tuple[Order, ...] = (), **changes: object) -> Next:
    """Store what changed, if anything did."""
    after = noted(state, **changes)
    return after, ((StoreGeneration(after.record), *orders) if after != state else orders)
