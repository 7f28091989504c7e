"""Keep what is known of a job's newest generation; what must be said follows from it alone.

So an order can be given again: after a while without an answer, and by the next weaver, which
begins with what was stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torchloom.rules.election import Holding, Plan, Standing
from torchloom.rules.escalation import Limits, Mode
from torchloom.rules.membership import Seat, Seats, Who, seat_of
from torchloom.rules.regroup import (
    Finish,
    Fork,
    Go,
    Kill,
    MakeStore,
    Notify,
    Order,
    Release,
    Seal,
    Told,
    Transfer,
)


class Phase(StrEnum):
    """What the newest generation does."""

    TRAINING = "training"
    GATHERING = "gathering"  # its members are on their way
    MOVING = "moving"  # state goes to those who lack it
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored before anything that follows from it is done."""

    seats: Seats
    generation: int = 0
    attempt: int = 1
    phase: Phase = Phase.GATHERING
    mode: Mode = Mode.LIVE
    lost: frozenset[str] = frozenset()  # nodes
    plan: Plan | None = None
    checkpoint: int | None = None
    reason: str = ""  # of the first loss of this recovery
    is_explained: bool = True  # a collective that broke is no reason: somebody's end is
    tries: int = 0
    strikes: tuple[tuple[int, int, int], ...] = ()  # (rank, step, losses in a row in that step)
    reforms: tuple[int, int] = (-1, 0)  # (step, generations that broke in it with nobody gone)
    rejoins: int = 0  # generations of this recovery that broke while they met
    furthest: int = 0  # step that any member was known to have applied
    furthest_then: int = -1  # at the last restart
    stuck: int = 0  # restarts in a row that got no further
    inexact: tuple[int, ...] = ()  # ranks that went on with what is not their own,
    inexact_at: int = 0  # from this step on


@dataclass(frozen=True, slots=True)
class Talk:
    """What members answered in this generation and phase; a new weaver asks again."""

    standings: Mapping[int, Standing] = field(default_factory=dict)
    done: frozenset[int] = frozenset()  # have taken what they need; or, when training, started
    finished: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()  # said that a collective broke
    broken_at: float = 0.0
    has_store: bool = False
    is_sealed: bool = False  # the newest checkpoint is known, and none will follow
    said_at: float = 0.0
    waited: float = 0.0  # of this recovery


@dataclass(frozen=True, slots=True)
class State:
    """One job whose policy is `live`."""

    holding: Holding
    room: Mapping[str, int]  # how many ranks each node can have
    record: Record
    limits: Limits = field(default_factory=Limits)
    talk: Talk = field(default_factory=Talk)
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Persist:
    """Store the record, and with it what is told, before anything that follows is done."""

    record: Record
    told: tuple[Told, ...] = ()


Effect = Persist | Order
Next = tuple[State, tuple[Effect, ...]]


def due(state: State) -> tuple[Order, ...]:
    """Return every order that has no answer yet: all that is to be said in this state."""
    record, talk = state.record, state.talk
    ending = tuple(
        Kill(seat.who, record.reason)
        for seat in record.seats
        if seat.is_ending and not seat.is_gone
    )
    match record.phase:
        case Phase.GATHERING:
            missing = [s for s in record.seats if s.is_up and s.rank not in talk.standings]
            store = () if talk.has_store else _store(record)
            seal = () if talk.is_sealed else (Seal(record.generation),)
            calls = (order for seat in missing for order in _call(record, seat))
            return (*ending, *store, *seal, *calls)
        case Phase.MOVING:
            missing = [s for s in record.seats if s.rank not in talk.done]
        case Phase.TRAINING:
            missing = [s for s in record.seats if s.is_up and s.rank not in talk.done]
        case _:
            lost = {"", *record.lost}
            missing = [s for s in record.seats if s.is_up and s.node not in lost]
    return (*ending, *(order for seat in missing for order in tell_again(state, seat.who)))


def _call(record: Record, seat: Seat) -> tuple[Order, ...]:
    """Have a member come: one whose process was ordered may not have been started yet."""
    if not seat.node:
        return ()
    notify = Notify(seat.who, record.generation)
    return (Fork(seat.who, record.generation, record.mode), notify) if seat.is_new else (notify,)


def _store(record: Record) -> tuple[Order, ...]:
    """Have the store made on the node of the lowest rank that has one."""
    node = next((seat.node for seat in record.seats if seat.node), "")
    return (MakeStore(node, record.generation),) if node else ()


def tell_again(state: State, who: Who) -> tuple[Order, ...]:
    """Answer a process that is behind with what it is to do; one without a seat is to end."""
    record = state.record
    if record.phase in (Phase.COMPLETE, Phase.FAILED):
        return (tell_the_end(state, who),)
    seat = seat_of(record.seats, who)
    if seat is None or seat.is_gone or seat.is_ending:
        return (Kill(who, "of an older generation"),)
    match record.phase, record.plan:
        case Phase.MOVING, Plan() as plan:
            return (Transfer(who, record.generation, plan),)
        case Phase.TRAINING, Plan() as plan:
            return (Go(who, record.generation, plan.start),)
        case _:
            return (Notify(who, record.generation),)


def tell_the_end(state: State, who: Who) -> Order:
    if state.record.phase is Phase.COMPLETE and seat_of(state.record.seats, who):
        return Release(who, state.record.generation)
    return Kill(who, state.record.reason)


def complete_if_all(state: State, *stored: Persist) -> Next:
    """End the job when each member has finished, or left by itself."""
    seats, finished = state.record.seats, state.talk.finished
    if not all(seat.has_left or seat.rank in finished for seat in seats):
        return state, stored
    state = noted(state, phase=Phase.COMPLETE)
    return state, (Persist(state.record, (Finish(),)), *due(state))


def noted(state: State, **changes: object) -> State:
    return replace(state, record=replace(state.record, **changes))  # type: ignore[arg-type]
