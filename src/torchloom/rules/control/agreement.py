"""Decide how a command takes effect before one step on all ranks, whoever dies meanwhile.

Commands of a job are decided one after the other. Ranks promise not to start a certain step
without an outcome; when all have, the latest of these steps is proposed. The outcome is what the
generation's store says: its first writer wins, be it the proposal or a rank that waited too long.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchloom.rules.control.command import (
    Abort,
    Ack,
    Command,
    CommandEntry,
    CommandKind,
    Commit,
    Outcome,
    Status,
)
from torchloom.rules.control.events import (
    Applied,
    Asked,
    AskWrite,
    BoundaryReached,
    CommandDone,
    CommandTick,
    Decided,
    Effect,
    Event,
    Generation,
    JobEnded,
    RankGone,
    Ready,
    Refused,
    SendPrepare,
    StoreCommand,
    Tell,
    Withdrawn,
)

RESEND = 1.0  # what has no answer is said again; a longer gap between two ticks counts as none
REMIND = 5.0  # ranks that have not applied what was committed are told again
PATIENCE = 10.0  # for answers to a command that no rank waits for
DELAYS = (0.05, 0.25, 1.0, 2.0, 4.0, 8.0)  # before an offer that came to nothing is made again


@dataclass(frozen=True, slots=True)
class RankAnswers:
    """What was said about the command that is being decided; a restart forgets it."""

    answers: Mapping[int, Ready] = field(default_factory=dict)
    proposal: Commit | None = None
    said_at: float | None = None
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
    talk: RankAnswers = field(default_factory=RankAnswers)
    told_at: float = 0.0
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
    """Take in one event; return the new state and what to do, in order."""
    match event:
        case Asked():
            return _asked(state, event.command)
        case Withdrawn():
            return _withdrawn(state, event)
        case BoundaryReached() if event.rank in state.ranks:
            seen = {**state.boundaries, event.rank: event.is_api}
            return _offer(replace(state, boundaries=seen))
        case Ready():
            return _ready(state, event)
        case Refused() if _is_open(state, event.id, event.offer) and not state.talk.proposal:
            return _give_up(state, Status.REFUSED, f"rank {event.rank}: {event.why}")
        case Refused() if event.is_late:
            return _failed(state, event)
        case Decided() if _is_open(state, event.id, event.offer):
            return _decided(state, event.outcome)
        case Applied():
            return _applied(state, event)
        case RankGone() if event.rank in state.ranks:
            return replace(state, ranks=frozenset(), boundaries={}, talk=RankAnswers()), ()
        case Generation() if event.number > state.generation:
            return _begin(state, event)
        case JobEnded():
            return _end(state, event.why)
        case CommandTick():
            return _tick(state, event.now)
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
    """Close a command that no rank was asked for, or only in an offer that is over."""
    for entry in state.queue:
        if entry.id == event.id and entry.status != Status.PREPARING:
            state, effects = _close(state, entry, Status.ABORTED, event.why)
            return _offer(state, *effects)
    return state, ()


def _offer(state: State, *before: Effect) -> Next:
    """Ask for promises to the first command, once all ranks have boundaries and it is time."""
    is_whole = bool(state.ranks) and state.boundaries.keys() == state.ranks
    is_due = state.talk.said_at is None and state.now >= state.talk.not_before
    if not (state.queue and is_whole and is_due):
        return state, before
    entry = state.queue[0]
    if entry.status != Status.PREPARING:  # else it was, before a restart
        entry = replace(entry, status=Status.PREPARING, generation=state.generation, why="")
        before = (*before, StoreCommand(entry))
    talk = replace(state.talk, said_at=state.now, since=state.now)
    state = replace(state, queue=(entry, *state.queue[1:]), talk=talk)
    return state, (*before, SendPrepare(entry, state.ranks))


def _ready(state: State, event: Ready) -> Next:
    talk = state.talk
    is_new = event.rank in state.ranks and event.rank not in talk.answers and not talk.proposal
    if not (is_new and _is_open(state, event.id, event.offer)):
        return state, ()
    answers = {**talk.answers, event.rank: event}
    state = replace(state, talk=replace(talk, answers=answers))
    return _propose(state) if answers.keys() == state.ranks else (state, ())


def _propose(state: State) -> Next:
    """With all promises given: refuse, or have the step written that no rank will have started."""
    entry, answers = state.queue[0], tuple(state.talk.answers.values())
    if not entry.command.kind.is_aligned:
        return _commit(state, None)
    why = _is_past(entry.command, answers) or _is_apart(state.boundaries, answers)
    if why:
        return _give_up(state, Status.REFUSED, why)
    proposal = Commit(max(*(a.limit for a in answers), entry.command.at_step or 0))
    talk = replace(state.talk, proposal=proposal, said_at=state.now)
    return replace(state, talk=talk), (AskWrite(entry, min(state.ranks), proposal),)


def _is_past(command: Command, answers: Iterable[Ready]) -> str:
    """Say which rank is in the wished step or beyond, if one is."""
    wished = command.at_step
    for answer in answers:
        if wished is not None and answer.step >= wished:
            return f"step {wished} is past: rank {answer.rank} is in step {answer.step}"
    return ""


def _is_apart(is_api: Mapping[int, bool], answers: Iterable[Ready]) -> str:
    """Say which ranks count steps that cannot be the same ones, if some do."""
    attached = [answer for answer in answers if not is_api[answer.rank]]
    if not attached:
        return ""
    low, high = min(attached, key=lambda a: a.step), max(attached, key=lambda a: a.step)
    allowed = max(a.k for a in attached) + 1
    if high.step - low.step <= allowed:
        return ""
    return (
        f"not aligned: rank {low.rank} is in step {low.step}, rank {high.rank} in step "
        f"{high.step}, more than {allowed} apart; steps of run.steps() need not be close"
    )


def _decided(state: State, outcome: Outcome) -> Next:
    """Obey the store. Where time ran out, offer again, later each time, and at last give up."""
    if isinstance(outcome, Commit):
        return _commit(state, outcome.step)
    entry, failures = state.queue[0], state.talk.failures
    if failures >= len(DELAYS):
        return _give_up(state, Status.ABORTED, _who_was_late(state))
    again = replace(entry, status=Status.OFFERED_AGAIN, offer=entry.offer + 1, why=outcome.why)
    talk = RankAnswers(failures=failures + 1, not_before=state.now + DELAYS[failures])
    if not state.ranks:  # the next generation begins anew
        talk = RankAnswers()
    told = _tell(entry, state.ranks, outcome)
    state = replace(state, queue=(again, *state.queue[1:]), talk=talk)
    return state, (StoreCommand(again), *told)


def _who_was_late(state: State) -> str:
    late = sorted(state.ranks - state.talk.answers.keys())
    if not late:
        return "the outcome was not written in time"
    return f"rank {', '.join(map(str, late))} did not answer in time"


def _commit(state: State, at: int | None) -> Next:
    entry = replace(state.queue[0], status=Status.COMMITTED, step=at)
    lifted = [e for e in state.standing if e.command.kind is CommandKind.PAUSE]
    state = replace(
        state, queue=state.queue[1:], standing=(*state.standing, entry), talk=RankAnswers()
    )
    effects = (StoreCommand(entry), *_tell(entry, state.ranks, Commit(at)))
    for pause in lifted if entry.command.kind is CommandKind.RESUME else ():
        state, closing = _close(state, pause, Status.APPLIED, f"lifted by {entry.id}")
        effects += closing
    return _offer(state, *effects)


def _applied(state: State, event: Applied) -> Next:
    """Note a rank's word; it may be the first that is heard of an outcome."""
    before: tuple[Effect, ...] = ()
    if _is_open(state, event.id, event.offer):
        is_aligned = state.queue[0].command.kind.is_aligned
        state, before = _commit(state, event.step if is_aligned else None)
    entry = next((e for e in state.standing if e.id == event.id), None)
    if entry is None or event.rank in entry.acks:
        return state, before
    why = entry.why
    if entry.step not in (None, event.step):
        why = f"rank {event.rank} did it before step {event.step} instead of {entry.step}"
    acks = {**entry.acks, event.rank: Ack(event.step, event.before, event.after)}
    entry = replace(entry, acks=acks, why=why)
    state, after = _settle(state, entry)
    return state, (*before, *after)


def _failed(state: State, event: Refused) -> Next:
    """Close a committed command of which a rank says that it came to nothing there."""
    entry = next((e for e in state.standing if e.id == event.id and e.offer == event.offer), None)
    if entry is None or event.rank in entry.acks:
        return state, ()
    return _close(state, entry, Status.ABORTED, f"rank {event.rank}: {event.why}")


def _settle(state: State, entry: CommandEntry) -> Next:
    """Store what ranks said, and close the command when all of them did it."""
    if state.ranks and entry.acks.keys() >= state.ranks:
        return _close(state, entry, Status.APPLIED, entry.why)
    standing = tuple(entry if e.id == entry.id else e for e in state.standing)
    return replace(state, standing=standing), (StoreCommand(entry),)


def _begin(state: State, event: Generation) -> Next:
    """Offer again what the last generation left open; what it had committed stands."""
    state = replace(
        state, generation=event.number, ranks=event.ranks, boundaries={}, talk=RankAnswers()
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
            return _close(state, entry, Status.APPLIED, "by those who lived on")
        if entry.step < event.start:
            why = f"in force when generation {event.number} began with step {event.start}"
            return _close(state, entry, Status.APPLIED, why)
        entry = replace(entry, generation=event.number, acks={})
    told = _tell(entry, event.ranks - entry.acks.keys(), Commit(entry.step))
    state, effects = _settle(state, entry)
    return state, (*effects, *told)


def _end(state: State, why: str) -> Next:
    effects: tuple[Effect, ...] = ()
    state = replace(state, ranks=frozenset(), boundaries={}, talk=RankAnswers())
    for entry in (*state.standing, *state.queue):
        status = Status.APPLIED if entry.acks else Status.ABORTED
        state, closing = _close(state, entry, status, why)
        effects += closing
    return state, effects


def _tick(state: State, now: float) -> Next:
    """Say again what had no answer; time in which nobody listened does not count."""
    was_away = now - state.now > RESEND
    state = replace(state, now=now)
    if was_away and state.talk.said_at is not None:
        state = replace(state, talk=replace(state.talk, said_at=now, since=now))
    state, effects = _offer(state)
    state, again = _say_again(state)
    if now - state.told_at < REMIND:
        return state, (*effects, *again)
    state = replace(state, told_at=now)
    for entry in state.standing:
        again += _tell(entry, state.ranks - entry.acks.keys(), Commit(entry.step))
    return state, (*effects, *again)


def _say_again(state: State) -> Next:
    talk, now = state.talk, state.now
    if not state.queue or talk.said_at is None or now - talk.said_at < RESEND:
        return state, ()
    entry = state.queue[0]
    if not entry.command.kind.is_aligned and now - talk.since >= PATIENCE:
        return _give_up(state, Status.ABORTED, _who_was_late(state))
    state = replace(state, talk=replace(talk, said_at=now))
    if talk.proposal:
        return state, (AskWrite(entry, min(state.ranks), talk.proposal),)
    return state, (SendPrepare(entry, state.ranks - talk.answers.keys()),)


def _give_up(state: State, status: Status, why: str) -> Next:
    """End the command that is being decided, while no commit can have been written for it."""
    entry = state.queue[0]
    told = _tell(entry, state.ranks, Abort(why))
    state, (stored, done) = _close(state, entry, status, why)
    return _offer(state, stored, *told, done)


def _close(state: State, entry: CommandEntry, status: Status, why: str) -> Next:
    is_first = bool(state.queue) and state.queue[0].id == entry.id
    entry = replace(entry, status=status, why=why)
    state = replace(
        state,
        queue=tuple(e for e in state.queue if e.id != entry.id),
        standing=tuple(e for e in state.standing if e.id != entry.id),
        closed={**state.closed, entry.id: entry},
        talk=RankAnswers() if is_first else state.talk,
    )
    return state, (StoreCommand(entry), CommandDone(entry))


def _tell(entry: CommandEntry, ranks: frozenset[int], outcome: Outcome) -> tuple[Effect, ...]:
    return (Tell(entry, ranks, outcome),) if ranks else ()


def _is_open(state: State, command: str, offer: int) -> bool:
    """Tell whether this offer of this command is being decided."""
    head = state.queue[0] if state.queue else None
    return (
        head is not None
        and (head.id, head.offer) == (command, offer)
        and head.status == Status.PREPARING
    )
