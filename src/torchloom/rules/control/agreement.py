"""Decide how a command takes effect before one step on all ranks, even if some die meanwhile.

Commands of a job are decided one after the other. Ranks promise not to start a certain step
without an outcome; when all have, the latest of these steps is proposed. The outcome is what the
generation's store holds: its first writer wins, be it the proposal or a rank that waited too long.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchloom.messages.plane import Applied, Decided, RankRefusal, Ready
from torchloom.rules.control.command import (
    Abort,
    Ack,
    Command,
    CommandEntry,
    CommandKind,
    CommitAt,
    Outcome,
    Status,
    offer_of,
)
from torchloom.rules.control.events import (
    Asked,
    AskWrite,
    BoundaryReached,
    CommandDone,
    CommandReport,
    CommandTick,
    Effect,
    Event,
    Generation,
    JobEnded,
    RankGone,
    SendOutcome,
    SendPrepare,
    StoreCommand,
    Withdrawn,
)

RESEND = 1.0  # what has no answer is sent again; a longer gap between two ticks counts as none
REMIND = 5.0  # ranks that have not applied what was committed are sent it again
NOT_IN_TIME = "no outcome in time"
PATIENCE = 10.0  # for answers to a command that no rank waits for
DELAYS = (0.05, 0.25, 1.0, 2.0, 4.0, 8.0)  # before an offer that came to nothing is made again


@dataclass(frozen=True, slots=True)
class RankAnswers:
    """What ranks answered to the offer that is being decided; a restart forgets it."""

    ready: Mapping[int, Ready] = field(default_factory=dict)
    proposal: CommitAt | None = None
    sent_at: float | None = None
    since: float = 0.0
    failures: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """The commands of one job, and the generation they are offered to."""

    generation: int = -1
    ranks: frozenset[int] = frozenset()  # none between two generations
    boundaries: Mapping[int, bool] = field(default_factory=dict)  # whether it is the API's
    queue: tuple[CommandEntry, ...] = ()  # not decided yet; the first one is at it
    standing: tuple[CommandEntry, ...] = ()  # committed and not yet done by all
    closed: Mapping[str, CommandEntry] = field(default_factory=dict)
    answers: RankAnswers = field(default_factory=RankAnswers)
    reminded_at: float = 0.0
    now: float = 0.0
    count: int = 0

    @property
    def audit(self) -> tuple[CommandEntry, ...]:
        """Return every command there was, in order."""
        entries = (*self.closed.values(), *self.standing, *self.queue)
        return tuple(sorted(entries, key=lambda entry: entry.number))


Next = tuple[State, tuple[Effect, ...]]


def restore(entries: Iterable[CommandEntry]) -> State:
    """Return the state after a restart: what was stored, and no generation yet."""
    rows = sorted(entries, key=lambda entry: entry.number)
    return State(
        queue=tuple(e for e in rows if not e.status.is_final and e.status != Status.COMMITTED),
        standing=tuple(e for e in rows if e.status == Status.COMMITTED),
        closed={e.id: e for e in rows if e.status.is_final},
        count=max((e.number for e in rows), default=0),
    )


def step(state: State, event: Event) -> Next:
    """Handle one event; return the new state and what to do, in order."""
    match event:
        case Asked():
            return _asked(state, event.command)
        case Withdrawn():
            return _withdrawn(state, event)
        case BoundaryReached() if event.rank in state.ranks:
            seen = {**state.boundaries, event.rank: event.is_api}
            return _offer(replace(state, boundaries=seen))
        case CommandReport():
            return _reported(state, event.rank, event.message)
        case RankGone() if event.rank in state.ranks:
            return replace(state, ranks=frozenset(), boundaries={}, answers=RankAnswers()), ()
        case Generation() if event.number > state.generation:
            return _begin(state, event)
        case JobEnded():
            return _end(state, event.why)
        case CommandTick():
            return _tick(state, event.now)
    return state, ()


def _reported(state: State, rank: int, message: Ready | RankRefusal | Decided | Applied) -> Next:
    """Handle what a rank of the present generation reports of a command."""
    is_open = _is_open(state, message.command)
    match message:
        case Ready() if is_open:
            return _ready(state, rank, message)
        case RankRefusal() if is_open and not state.answers.proposal:
            return _give_up(state, Status.REFUSED, f"rank {rank}: {message.why}")
        case RankRefusal() if message.is_late:
            return _failed(state, rank, message)
        case Decided() if is_open:
            return _decided(state, message.effective)
        case Applied():
            return _applied(state, rank, message)
    return state, ()


def _asked(state: State, command: Command) -> Next:
    if command.id in state.closed:
        return state, (CommandDone(state.closed[command.id]),)
    if any(entry.id == command.id for entry in (*state.queue, *state.standing)):
        return state, ()
    entry = CommandEntry(command, state.count + 1)
    state = replace(state, queue=(*state.queue, entry), count=entry.number)
    return _offer(state, StoreCommand(entry))


def _withdrawn(state: State, event: Withdrawn) -> Next:
    """Close a command that was not offered to ranks, or only in an offer that is over."""
    for entry in state.queue:
        if entry.id == event.id and entry.status != Status.PREPARING:
            state, effects = _close(state, entry, Status.ABORTED, event.why)
            return _offer(state, *effects)
    return state, ()


def _offer(state: State, *before: Effect) -> Next:
    """Ask for promises to the first command, once all ranks have boundaries and it is time."""
    is_whole = bool(state.ranks) and state.boundaries.keys() == state.ranks
    is_due = state.answers.sent_at is None and state.now >= state.answers.not_before
    if not (state.queue and is_whole and is_due):
        return state, before
    entry = state.queue[0]
    if entry.status != Status.PREPARING:  # else it was, before a restart
        entry = replace(entry, status=Status.PREPARING, generation=state.generation, why="")
        before = (*before, StoreCommand(entry))
    answers = replace(state.answers, sent_at=state.now, since=state.now)
    state = replace(state, queue=(entry, *state.queue[1:]), answers=answers)
    return state, (*before, SendPrepare(entry, state.ranks))


def _ready(state: State, rank: int, message: Ready) -> Next:
    answers = state.answers
    if rank not in state.ranks or rank in answers.ready or answers.proposal:
        return state, ()
    ready = {**answers.ready, rank: message}
    state = replace(state, answers=replace(answers, ready=ready))
    return _propose(state) if ready.keys() == state.ranks else (state, ())


def _propose(state: State) -> Next:
    """With all promises given: refuse, or have the step written that no rank will have started."""
    entry, ready = state.queue[0], state.answers.ready
    if not entry.command.kind.is_aligned:
        return _commit(state, None)
    why = _is_past(entry.command, ready) or _is_apart(state.boundaries, ready)
    if why:
        return _give_up(state, Status.REFUSED, why)
    limits = (answer.step + 1 + answer.ahead for answer in ready.values())
    proposal = CommitAt(max(*limits, entry.command.at_step or 0))
    answers = replace(state.answers, proposal=proposal, sent_at=state.now)
    return replace(state, answers=answers), (AskWrite(entry, min(state.ranks), proposal),)


def _is_past(command: Command, ready: Mapping[int, Ready]) -> str:
    """Return which rank is in the requested step or beyond; empty if none is."""
    at = command.at_step
    for rank, answer in ready.items():
        if at is not None and answer.step >= at:
            return f"step {at} is past: rank {rank} is in step {answer.step}"
    return ""


def _is_apart(is_api: Mapping[int, bool], ready: Mapping[int, Ready]) -> str:
    """Return which ranks count steps that cannot be the same ones; empty if none do."""
    steps = {rank: answer.step for rank, answer in ready.items() if not is_api[rank]}
    if not steps:
        return ""
    low, high = min(steps, key=lambda r: steps[r]), max(steps, key=lambda r: steps[r])
    allowed = max(ready[rank].ahead for rank in steps) + 1
    if steps[high] - steps[low] <= allowed:
        return ""
    return (
        f"not aligned: rank {low} is in step {steps[low]}, rank {high} in step "
        f"{steps[high]}, more than {allowed} apart; steps of run.steps() need not be close"
    )


def _decided(state: State, effective: int | None) -> Next:
    """Follow the store. Where time ran out, offer again, later each time, and at last give up."""
    entry, failures = state.queue[0], state.answers.failures
    if effective is not None:
        return _commit(state, effective if entry.command.kind.is_aligned else None)
    outcome = Abort(NOT_IN_TIME)
    if failures >= len(DELAYS):
        return _give_up(state, Status.ABORTED, _who_was_late(state))
    again = replace(entry, status=Status.OFFERED_AGAIN, offer=entry.offer + 1, why=outcome.why)
    answers = RankAnswers(failures=failures + 1, not_before=state.now + DELAYS[failures])
    if not state.ranks:  # the next generation begins anew
        answers = RankAnswers()
    sent = _send(entry, state.ranks, outcome)
    state = replace(state, queue=(again, *state.queue[1:]), answers=answers)
    return state, (StoreCommand(again), *sent)


def _who_was_late(state: State) -> str:
    late = sorted(state.ranks - state.answers.ready.keys())
    if not late:
        return "the outcome was not written in time"
    return f"rank {', '.join(map(str, late))} did not answer in time"


def _commit(state: State, at: int | None) -> Next:
    entry = replace(state.queue[0], status=Status.COMMITTED, step=at)
    lifted = [e for e in state.standing if e.command.kind is CommandKind.PAUSE]
    state = replace(
        state, queue=state.queue[1:], standing=(*state.standing, entry), answers=RankAnswers()
    )
    effects = (StoreCommand(entry), *_send(entry, state.ranks, CommitAt(at)))
    for pause in lifted if entry.command.kind is CommandKind.RESUME else ():
        state, closing = _close(state, pause, Status.APPLIED, f"lifted by {entry.id}")
        effects += closing
    return _offer(state, *effects)


def _applied(state: State, rank: int, message: Applied) -> Next:
    """Note what a rank did; its report may be the first news of an outcome."""
    before: tuple[Effect, ...] = ()
    if _is_open(state, message.command):
        state, before = _decided(state, message.step)
    command, _ = offer_of(message.command) or ("", 0)
    entry = next((e for e in state.standing if e.id == command), None)
    if entry is None or rank in entry.acks:
        return state, before
    why = entry.why
    if entry.step not in (None, message.step):
        why = f"rank {rank} did it before step {message.step} instead of {entry.step}"
    acks = {**entry.acks, rank: Ack(message.step, message.before, message.after)}
    entry = replace(entry, acks=acks, why=why)
    state, after = _settle(state, entry)
    return state, (*before, *after)


def _failed(state: State, rank: int, message: RankRefusal) -> Next:
    """Close a committed command that failed on a rank."""
    entry = next((e for e in state.standing if e.offer_id == message.command), None)
    if entry is None or rank in entry.acks:
        return state, ()
    return _close(state, entry, Status.ABORTED, f"rank {rank}: {message.why}")


def _settle(state: State, entry: CommandEntry) -> Next:
    """Store the acks of ranks, and close the command when all of them did it."""
    if state.ranks and entry.acks.keys() >= state.ranks:
        return _close(state, entry, Status.APPLIED, entry.why)
    standing = tuple(entry if e.id == entry.id else e for e in state.standing)
    return replace(state, standing=standing), (StoreCommand(entry),)


def _begin(state: State, event: Generation) -> Next:
    """Offer again what the last generation left open; what it had committed stands."""
    state = replace(
        state, generation=event.number, ranks=event.ranks, boundaries={}, answers=RankAnswers()
    )
    effects: tuple[Effect, ...] = ()
    head = state.queue[0] if state.queue else None
    if head and head.status == Status.PREPARING and head.generation != event.number:
        why = f"generation {head.generation} ended first"
        head = replace(head, status=Status.OFFERED_AGAIN, offer=head.offer + 1, why=why)
        state = replace(state, queue=(head, *state.queue[1:]))
        effects += (StoreCommand(head),)
    for entry in state.standing:
        state, more = _carry_over(state, entry, event)
        effects += more
    return state, effects


def _carry_over(state: State, entry: CommandEntry, event: Generation) -> Next:
    """Have a committed command act in this generation too, unless its time is over."""
    if entry.generation != event.number:
        if entry.step is None:
            return _close(state, entry, Status.APPLIED, "by the ranks that survived")
        if entry.step < event.start:
            why = f"in force when generation {event.number} began with step {event.start}"
            return _close(state, entry, Status.APPLIED, why)
        entry = replace(entry, generation=event.number, acks={})
    sent = _send(entry, event.ranks - entry.acks.keys(), CommitAt(entry.step))
    state, effects = _settle(state, entry)
    return state, (*effects, *sent)


def _end(state: State, why: str) -> Next:
    effects: tuple[Effect, ...] = ()
    state = replace(state, ranks=frozenset(), boundaries={}, answers=RankAnswers())
    for entry in (*state.standing, *state.queue):
        status = Status.APPLIED if entry.acks else Status.ABORTED
        state, closing = _close(state, entry, status, why)
        effects += closing
    return state, effects


def _tick(state: State, now: float) -> Next:
    """Send again what had no answer; time in which no tick came does not count."""
    was_away = now - state.now > RESEND
    state = replace(state, now=now)
    if was_away and state.answers.sent_at is not None:
        state = replace(state, answers=replace(state.answers, sent_at=now, since=now))
    state, effects = _offer(state)
    state, again = _send_again(state)
    if now - state.reminded_at < REMIND:
        return state, (*effects, *again)
    state = replace(state, reminded_at=now)
    for entry in state.standing:
        again += _send(entry, state.ranks - entry.acks.keys(), CommitAt(entry.step))
    return state, (*effects, *again)


def _send_again(state: State) -> Next:
    answers, now = state.answers, state.now
    if not state.queue or answers.sent_at is None or now - answers.sent_at < RESEND:
        return state, ()
    entry = state.queue[0]
    if not entry.command.kind.is_aligned and now - answers.since >= PATIENCE:
        return _give_up(state, Status.ABORTED, _who_was_late(state))
    state = replace(state, answers=replace(answers, sent_at=now))
    if answers.proposal:
        return state, (AskWrite(entry, min(state.ranks), answers.proposal),)
    return state, (SendPrepare(entry, state.ranks - answers.ready.keys()),)


def _give_up(state: State, status: Status, why: str) -> Next:
    """End the command that is being decided, while no commit can have been written for it."""
    entry = state.queue[0]
    sent = _send(entry, state.ranks, Abort(why))
    state, (stored, done) = _close(state, entry, status, why)
    return _offer(state, stored, *sent, done)


def _close(state: State, entry: CommandEntry, status: Status, why: str) -> Next:
    is_first = bool(state.queue) and state.queue[0].id == entry.id
    entry = replace(entry, status=status, why=why)
    state = replace(
        state,
        queue=tuple(e for e in state.queue if e.id != entry.id),
        standing=tuple(e for e in state.standing if e.id != entry.id),
        closed={**state.closed, entry.id: entry},
        answers=RankAnswers() if is_first else state.answers,
    )
    return state, (StoreCommand(entry), CommandDone(entry))


def _send(entry: CommandEntry, ranks: frozenset[int], outcome: Outcome) -> tuple[Effect, ...]:
    return (SendOutcome(entry, ranks, outcome),) if ranks else ()


def _is_open(state: State, offer_id: str) -> bool:
    """Return whether this offer is being decided."""
    head = state.queue[0] if state.queue else None
    return head is not None and head.offer_id == offer_id and head.status == Status.PREPARING
