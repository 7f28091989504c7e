"""Keep what is known of a job's newest generation; what must be said follows from it alone.

So an order can be given again: after a while without an answer, and by the next weaver, which
begins with what was stored.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from torchloom.rules.membership.election import (
    GenerationPlan,
    Holding,
    MemberPosition,
    RecoveryLimits,
    RecoveryMode,
    StateOrigin,
    StateTransfer,
    What,
)
from torchloom.rules.membership.events import (
    EndGeneration,
    Fork,
    Go,
    Kill,
    MakeStore,
    NotifyMembers,
    Order,
    Release,
    Seal,
    Told,
    Transfer,
)
from torchloom.rules.membership.seats import MemberProcess, MemberSeat, Seats, seat_of


class GenerationPhase(StrEnum):
    """What the newest generation does."""

    TRAINING = "training"
    GATHERING = "gathering"  # its members are on their way
    MOVING = "moving"  # state goes to those who lack it
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """What is stored before anything that follows from it is done."""

    seats: Seats
    generation: int = 0
    attempt: int = 1
    phase: GenerationPhase = GenerationPhase.GATHERING
    mode: RecoveryMode = RecoveryMode.LIVE
    lost: frozenset[str] = frozenset()  # nodes
    plan: GenerationPlan | None = None
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
class MemberAnswers:
    """What members answered in this generation and phase; a new weaver asks again."""

    standings: Mapping[int, MemberPosition] = field(default_factory=dict)
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
    record: GenerationRecord
    limits: RecoveryLimits = field(default_factory=RecoveryLimits)
    talk: MemberAnswers = field(default_factory=MemberAnswers)
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreGeneration:
    """Store the record, and with it what is told, before anything that follows is done."""

    record: GenerationRecord
    told: tuple[Told, ...] = ()


Effect = StoreGeneration | Order
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
        case GenerationPhase.GATHERING:
            missing = [s for s in record.seats if s.is_up and s.rank not in talk.standings]
            store = () if talk.has_store else _store(record)
            seal = () if talk.is_sealed else (Seal(record.generation),)
            calls = (order for seat in missing for order in _call(record, seat))
            return (*ending, *store, *seal, *calls)
        case GenerationPhase.MOVING:
            missing = [s for s in record.seats if s.rank not in talk.done]
        case GenerationPhase.TRAINING:
            missing = [s for s in record.seats if s.is_up and s.rank not in talk.done]
        case _:
            lost = {"", *record.lost}
            missing = [s for s in record.seats if s.is_up and s.node not in lost]
    return (*ending, *(order for seat in missing for order in tell_again(state, seat.who)))


def _call(record: GenerationRecord, seat: MemberSeat) -> tuple[Order, ...]:
    """Have a member come: one whose process was ordered may not have been started yet."""
    if not seat.node:
        return ()
    notify = NotifyMembers(seat.who, record.generation)
    return (Fork(seat.who, record.generation, record.mode), notify) if seat.is_new else (notify,)


def _store(record: GenerationRecord) -> tuple[Order, ...]:
    """Have the store made on the node of the lowest rank that has one."""
    node = next((seat.node for seat in record.seats if seat.node), "")
    return (MakeStore(node, record.generation),) if node else ()


def tell_again(state: State, who: MemberProcess) -> tuple[Order, ...]:
    """Answer a process that is behind with what it is to do; one without a seat is to end."""
    record = state.record
    if record.phase in (GenerationPhase.COMPLETE, GenerationPhase.FAILED):
        return (tell_the_end(state, who),)
    seat = seat_of(record.seats, who)
    if seat is None or seat.is_gone or seat.is_ending:
        return (Kill(who, "of an older generation"),)
    match record.phase, record.plan:
        case GenerationPhase.MOVING, GenerationPlan() as plan:
            return (Transfer(who, record.generation, plan),)
        case GenerationPhase.TRAINING, GenerationPlan() as plan:
            return (Go(who, record.generation, plan.start),)
        case _:
            return (NotifyMembers(who, record.generation),)


def tell_the_end(state: State, who: MemberProcess) -> Order:
    if state.record.phase is GenerationPhase.COMPLETE and seat_of(state.record.seats, who):
        return Release(who, state.record.generation)
    return Kill(who, state.record.reason)


def complete_if_all(state: State, *stored: StoreGeneration) -> Next:
    """End the job when each member has finished, or left by itself."""
    seats, finished = state.record.seats, state.talk.finished
    if not all(seat.has_left or seat.rank in finished for seat in seats):
        return state, stored
    state = noted(state, phase=GenerationPhase.COMPLETE)
    return state, (StoreGeneration(state.record, (EndGeneration(),)), *due(state))


def noted(state: State, **changes: object) -> State:
    return replace(state, record=replace(state.record, **changes))  # type: ignore[arg-type]


def record_to_dict(record: GenerationRecord) -> dict[str, Any]:
    """Return it as JSON can hold it."""
    return {**asdict(record), "lost": sorted(record.lost)}


def record_from_dict(row: Mapping[str, Any]) -> GenerationRecord:
    """Read back what `record_to_dict` wrote."""
    step, times = row["reforms"]
    return GenerationRecord(
        **{
            **row,
            "seats": tuple(MemberSeat(**seat) for seat in row["seats"]),
            "phase": GenerationPhase(row["phase"]),
            "mode": RecoveryMode(row["mode"]),
            "lost": frozenset(row["lost"]),
            "plan": _plan_from_dict(row["plan"]) if row["plan"] else None,
            "strikes": tuple((rank, at, count) for rank, at, count in row["strikes"]),
            "reforms": (step, times),
            "inexact": tuple(row["inexact"]),
        }
    )


def _plan_from_dict(row: Mapping[str, Any]) -> GenerationPlan:
    moves = tuple(StateTransfer(**{**move, "what": What(move["what"])}) for move in row["moves"])
    return GenerationPlan(row["start"], StateOrigin(row["origin"]), moves, tuple(row["inexact"]))
