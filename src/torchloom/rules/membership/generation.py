"""What is known of a job's newest generation, and the orders that follow from it alone.

An order can therefore be repeated: after a while without an answer, and by the next weaver, which
starts with what was stored.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from torchloom.messages.base import NO_RANK, VERSION, Head
from torchloom.messages.membership import (
    EndProcess,
    Fork,
    Given,
    Go,
    JoinGeneration,
    LetStand,
    MakeStore,
    Release,
    Transfer,
)
from torchloom.rules.membership.election import (
    GenerationPlan,
    Holding,
    MemberPosition,
    RecoveryLimits,
    RecoveryMode,
    StateOrigin,
    What,
)
from torchloom.rules.membership.events import GenerationChange, JobCompleted, Order, Seal, Send
from torchloom.rules.membership.seats import MemberProcess, MemberSeat, Seats, seat_of

OLDER = "of an older generation"  # why a process without a seat is to end
NO_EPOCH, NO_GENERATION, NO_STORE = 0, -1, ""  # the weaver that sends a message fills them in


class GenerationPhase(StrEnum):
    """What the newest generation is doing."""

    TRAINING = "training"
    GATHERING = "gathering"  # its members join
    MOVING = "moving"  # state is sent to members that lack it
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """What is stored before any order that follows from it is carried out."""

    seats: Seats
    generation: int = 0
    attempt: int = 1
    phase: GenerationPhase = GenerationPhase.GATHERING
    mode: RecoveryMode = RecoveryMode.LIVE
    lost: frozenset[str] = frozenset()  # nodes
    plan: GenerationPlan | None = None
    checkpoint: int | None = None
    reason: str = ""  # of the first loss of this recovery
    is_explained: bool = True  # false: a collective broke, and no death explains it yet
    tries: int = 0
    strikes: tuple[tuple[int, int, int], ...] = ()  # (rank, step, losses in a row in that step)
    reforms: tuple[int, int] = (-1, 0)  # (step, generations that broke in it without a death)
    rejoins: int = 0  # generations of this recovery that broke while they met
    furthest: int = 0  # step that any member was known to have applied
    furthest_then: int = -1  # at the last restart
    stuck: int = 0  # restarts in a row that got no further
    inexact: tuple[int, ...] = ()  # ranks that continued with private state of another,
    inexact_at: int = 0  # from this step on


@dataclass(frozen=True, slots=True)
class MemberAnswers:
    """What members answered in this generation and phase; a new weaver requests it again."""

    standings: Mapping[int, MemberPosition] = field(default_factory=dict)
    done: frozenset[int] = frozenset()  # have taken what they need; or, when training, started
    finished: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()  # reported that a collective broke
    broken_at: float = 0.0
    has_store: bool = False
    is_sealed: bool = False  # the newest checkpoint is known, and none will follow
    sent_at: float = 0.0  # when all that is due was last sent
    waited: float = 0.0  # of this recovery


@dataclass(frozen=True, slots=True)
class State:
    """One job whose policy is `live`."""

    holding: Holding
    room: Mapping[str, int]  # how many ranks each node can have
    record: GenerationRecord
    limits: RecoveryLimits = field(default_factory=RecoveryLimits)
    answers: MemberAnswers = field(default_factory=MemberAnswers)
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreGeneration:
    """Store the record, and with it what it makes true, before any order is carried out."""

    record: GenerationRecord
    changes: tuple[GenerationChange, ...] = ()


Effect = StoreGeneration | Order
Next = tuple[State, tuple[Effect, ...]]


def due(state: State) -> tuple[Order, ...]:
    """Return every order that has no answer yet: all that is to be sent in this state."""
    record, answers = state.record, state.answers
    ending = tuple(
        end_process(record, seat.who, record.reason)
        for seat in record.seats
        if seat.is_ending and not seat.is_gone
    )
    match record.phase:
        case GenerationPhase.GATHERING:
            missing = [s for s in record.seats if s.is_up and s.rank not in answers.standings]
            store = () if answers.has_store else _store(record)
            seal = () if answers.is_sealed else (Seal(record.generation),)
            calls = (order for seat in missing for order in _call(record, seat))
            return (*ending, *store, *seal, *calls)
        case GenerationPhase.MOVING:
            missing = [s for s in record.seats if s.rank not in answers.done]
        case GenerationPhase.TRAINING:
            missing = [s for s in record.seats if s.is_up and s.rank not in answers.done]
        case _:
            lost = {"", *record.lost}
            missing = [s for s in record.seats if s.is_up and s.node not in lost]
    return (*ending, *(order_again(state, seat.who) for seat in missing))


def _call(record: GenerationRecord, seat: MemberSeat) -> tuple[Order, ...]:
    """Have a member join; a process that was ordered may not have been started yet."""
    if not seat.node:
        return ()
    who, join = seat.who, to_member(record, seat.who, JoinGeneration)
    fork = Fork(_head(record), NO_EPOCH, record.attempt, who.rank, who.life, who.node)
    return (Send(who, fork), join) if seat.is_new else (join,)


def _store(record: GenerationRecord) -> tuple[Order, ...]:
    """Have the store made on the node of the lowest rank that has one."""
    seat = next((seat for seat in record.seats if seat.node), None)
    if seat is None:
        return ()
    message = MakeStore(_head(record), NO_EPOCH, record.attempt, seat.node)
    return (Send(seat.who, message),)


def order_again(state: State, who: MemberProcess) -> Send:
    """Answer a process that is behind with what it is to do; one without a seat is to end."""
    record = state.record
    if record.phase in (GenerationPhase.COMPLETE, GenerationPhase.FAILED):
        return order_end(record, who)
    seat = seat_of(record.seats, who)
    if seat is None or seat.is_gone or seat.is_ending:
        return end_process(record, who, OLDER)
    match record.phase, record.plan:
        case GenerationPhase.MOVING, GenerationPlan() as plan:
            nodes = tuple(seat.node for seat in record.seats)
            head = _head(record, who.rank)
            return Send(who, Transfer(head, NO_EPOCH, NO_STORE, plan.start, plan.moves, nodes))
        case GenerationPhase.TRAINING, GenerationPlan() as plan:
            return Send(who, Go(_head(record, who.rank), NO_EPOCH, plan.start))
        case _:
            return to_member(record, who, JoinGeneration)


def order_end(record: GenerationRecord, who: MemberProcess) -> Send:
    """Order what follows for a process when its job has ended."""
    if record.phase is GenerationPhase.COMPLETE and seat_of(record.seats, who):
        return to_member(record, who, Release)
    return end_process(record, who, record.reason)


def end_process(record: GenerationRecord, who: MemberProcess, reason: str) -> Send:
    """Order the end of one process; no other process of its rank is meant."""
    head = Head(VERSION, "", NO_GENERATION, NO_RANK, "")
    return Send(who, EndProcess(head, NO_EPOCH, record.attempt, who.rank, who.life, reason))


def to_member(
    record: GenerationRecord,
    who: MemberProcess,
    kind: type[JoinGeneration] | type[LetStand] | type[Release],
) -> Send:
    """Order a message to a member that has nothing but a head."""
    return Send(who, kind(_head(record, who.rank), NO_EPOCH))


def _head(record: GenerationRecord, rank: int = NO_RANK) -> Head:
    return Head(VERSION, "", record.generation, rank, "")


def complete_if_all(state: State, *stored: StoreGeneration) -> Next:
    """End the job when each member has finished, or left by itself."""
    seats, finished = state.record.seats, state.answers.finished
    if not all(seat.has_left or seat.rank in finished for seat in seats):
        return state, stored
    state = noted(state, phase=GenerationPhase.COMPLETE)
    return state, (StoreGeneration(state.record, (JobCompleted(),)), *due(state))


def noted(state: State, **changes: object) -> State:
    return replace(state, record=replace(state.record, **changes))  # type: ignore[arg-type]


def record_to_dict(record: GenerationRecord) -> dict[str, Any]:
    """Return it as JSON can hold it."""
    row = {**asdict(record), "lost": sorted(record.lost)}
    if record.plan is not None:
        row["plan"]["moves"] = [msgspec.structs.asdict(move) for move in record.plan.moves]
    return row


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
    moves = tuple(Given(**{**move, "what": What(move["what"])}) for move in row["moves"])
    return GenerationPlan(row["start"], StateOrigin(row["origin"]), moves, tuple(row["inexact"]))
