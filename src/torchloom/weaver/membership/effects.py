"""Carry out what follows from an event: store it in one transaction, then send messages."""

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from torchloom.messages.membership import (
    EndProcess,
    LetStand,
    ProcessReports,
    Release,
    Restart,
    ToLaunch,
    Transfer,
    Watch,
)
from torchloom.messages.plane import NO_RANK, VERSION, Head, Message
from torchloom.rules.membership import live_recovery
from torchloom.rules.membership.election import Cause
from torchloom.rules.membership.events import (
    Event,
    GenerationBegan,
    GenerationChange,
    GenerationCommitted,
    JobCompleted,
    JobFailed,
    RestartBegan,
    Seal,
    Sealed,
    Send,
    Tick,
)
from torchloom.rules.membership.generation import State, StoreGeneration
from torchloom.rules.membership.live_recovery import is_quiet
from torchloom.specs.states import JobState
from torchloom.weaver.checkpoints.requests import CheckpointRows
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.events import Journal, Sender
from torchloom.weaver.health.roster import OVER, Roster
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.jobs.reports import RankReports
from torchloom.weaver.membership.attempt import LiveAttempt, LiveAttempts
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import RankProcessRow

UNFIT = "unfit"  # a member that has trained cannot be recovered live
RECOVERED = "recovered"
NOT_LIVE = "not_live"  # among a job's facts: which rank cannot be recovered live, and why
AGAIN = 0.5  # seconds after which a message to a launch process without an answer is sent again


class MemberMessages:
    """Send messages through agents; the rules repeat what does not arrive."""

    def __init__(self, roster: Roster, sender: Sender, epoch: int, dropped: Counter[str]) -> None:
        self._roster = roster
        self._sender = sender
        self._epoch = epoch
        self._dropped = dropped
        self._launches: dict[str, str] = {}  # the agents of launch processes, by job

    def launch_at(self, job: str, agent: str) -> None:
        """Note through which agent a job's launch process is reached."""
        self._launches[job] = agent

    def is_launch(self, job: str, agent: str) -> bool:
        """Return whether an agent may report for a job's launch process."""
        if self._launches.setdefault(job, agent) == agent:
            return True
        self._dropped["foreign_agent"] += 1
        return False

    def forget(self, job: str) -> None:
        """Forget where a job's launch process was."""
        self._launches.pop(job, None)

    def order(self, one: LiveAttempt, order: Send) -> None:
        """Send one order of the rules, with what only the weaver knows filled in."""
        message = order.message
        if isinstance(message, ToLaunch):
            head = _launch_head(one.job, one.generation, one.role)
            self._launch(msgspec.structs.replace(message, head=head, epoch=self._epoch))
            return
        row = self._roster.find(one.job, one.role, order.who.rank)
        process = (one.attempt, order.who.life)
        if row is None or (row.attempt, row.life) != process or row.state in OVER:
            return
        generation = message.head.generation
        message = msgspec.structs.replace(message, head=_head(row, generation), epoch=self._epoch)
        if isinstance(message, Transfer):
            if one.stored != generation:
                return  # the launch process reports within a second where its store is
            message = msgspec.structs.replace(message, store=one.store)
        self._sender.soon(row.agent, message)

    def watch(self, one: LiveAttempt, is_live: bool | None = None) -> bool:
        """Send a launch process whether its losses are handled here; False if it is not known."""
        head = _launch_head(one.job, one.generation, one.role)
        is_live = not one.is_over if is_live is None else is_live
        return self._launch(Watch(head, self._epoch, one.attempt, is_live))

    def unwatch(self, reports: ProcessReports) -> None:
        """Send a launch process that is not known here that it handles its losses itself."""
        head = _launch_head(reports.head.job, reports.head.generation, reports.head.role)
        self._launch(Watch(head, self._epoch, reports.attempt, False))

    def restart(self, one: LiveAttempt) -> bool:
        """Have a launch process restart all ranks; False if it is not known."""
        head = _launch_head(one.job, one.generation, one.role)
        reason = one.state.record.reason
        return self._launch(Restart(head, self._epoch, one.attempt, reason, one.cause))

    def release(self, rank: RankProcessRow, generation: int) -> None:
        """Release a rank of a job that is not watched."""
        self._sender.soon(rank.agent, Release(_head(rank, generation), self._epoch))

    def let_stand(self, rank: RankProcessRow, generation: int) -> None:
        """Send a rank of a job that is not watched that its generation continues."""
        self._sender.soon(rank.agent, LetStand(_head(rank, generation), self._epoch))

    def _launch(self, message: Message) -> bool:
        agent = self._launches.get(message.head.job)
        if agent is not None:
            self._sender.soon(agent, message)
        return agent is not None


def _head(rank: RankProcessRow, generation: int) -> Head:
    return Head(VERSION, rank.job, generation, rank.rank, rank.incarnation, rank.role)


def _launch_head(job: str, generation: int, role: str) -> Head:
    return Head(VERSION, job, generation, NO_RANK, "", role)


class JobUpdates:
    """Changes of a job and its events; stored in the transaction of the record."""

    def __init__(
        self,
        jobs: JobRegistry,
        journal: Journal,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._journal = journal
        self._now = now
        self._clock = clock
        self._began_at: dict[str, float] = {}  # by our own clock, of recoveries under way

    def begins(self, one: LiveAttempt) -> None:
        """An attempt is watched from now on."""
        ranks = len(one.state.record.seats)
        facts = {"attempt": one.attempt, "generation": one.generation, "ranks": ranks}
        self._journal.note("live", one.job, facts=facts)

    def cannot(self, rank: RankProcessRow, why: str) -> None:
        """Note once that a rank cannot be recovered live."""
        job = self._jobs.get(rank.job)
        known = job.facts.get(NOT_LIVE) or {} if job is not None else {}
        if (known.get("attempt"), known.get("why")) != (rank.attempt, why):
            facts = {"attempt": rank.attempt, "rank": rank.rank, "why": why}
            self._jobs.mark(rank.job, {NOT_LIVE: facts})
            self._journal.note(NOT_LIVE, rank.job, rank=rank.rank, reason=why, facts=facts)

    def apply(self, one: LiveAttempt, change: GenerationChange) -> None:
        """Note one change of a generation in its job's state and events."""
        match change:
            case GenerationBegan():
                self._began(one, change)
            case GenerationCommitted():
                self._committed(one, change)
            case RestartBegan() | JobFailed():
                self._given_up(one, change.cause)
            case JobCompleted():
                one.since, one.is_due = None, True
                self._began_at.pop(one.job, None)

    def _began(self, one: LiveAttempt, change: GenerationBegan) -> None:
        if one.since is None:
            one.since, self._began_at[one.job] = self._now(), self._clock()
        self._jobs.set_generation(one.job, change.generation)
        self._jobs.turn(one.job, JobState.RECOVERING, change.reason)
        facts = {"generation": change.generation, "mode": str(change.mode), "reason": change.reason}
        self._journal.note("regrouping", one.job, reason=change.reason, facts=facts)

    def _committed(self, one: LiveAttempt, change: GenerationCommitted) -> None:
        took = self._took(one)
        moves = [[m.target, str(m.what), m.step, m.source] for m in change.plan.moves]
        facts: dict[str, Any] = {
            "generation": change.generation,
            "start": change.plan.start,
            "seconds": round(took, 6),
            "moves": moves,
            "inexact": list(change.inexact),
        }
        reason, one.since = one.state.record.reason, None
        self._jobs.turn(one.job, JobState.RUNNING, RECOVERED)
        self._journal.note("recovered", one.job, step=change.plan.start, reason=reason, facts=facts)

    def _took(self, one: LiveAttempt) -> float:
        """Return how long a recovery took; one that another weaver began is by the time of day."""
        if one.since is None:
            return 0.0
        began = self._began_at.pop(one.job, None)
        return self._clock() - began if began is not None else max(0.0, self._now() - one.since)

    def _given_up(self, one: LiveAttempt, cause: Cause) -> None:
        """Live recovery has ended: what a member reported of that is the cause, if one did."""
        reason = one.state.record.reason or str(cause)
        new = {seat.rank for seat in one.state.record.seats if seat.is_new}
        is_unfit = cause is Cause.PROLOGUE and not new.intersection(one.whys)
        one.cause, one.since = UNFIT if is_unfit else str(cause), None
        self._began_at.pop(one.job, None)
        self._jobs.turn(one.job, JobState.RECOVERING, reason)
        facts = {"generation": one.generation, "cause": one.cause}
        why = {str(rank): text for rank, text in sorted(one.whys.items())}
        self._journal.note("live_ended", one.job, reason=reason, facts={**facts, "why": why})


@dataclass(frozen=True, slots=True)
class Decision:
    """The state after all events, whether it is to be stored, what it changes, what is sent."""

    state: State
    is_news: bool = False
    changes: tuple[GenerationChange, ...] = ()
    orders: tuple[Send, ...] = ()


def decide(state: State, events: Iterable[Event], saved: Callable[[], int | None]) -> Decision:
    """Handle some events; `saved` returns the step of the newest checkpoint.

    A change of the generation makes older orders void, since the new state gives all that are due;
    only orders to end a process stay. When live recovery ends, nothing is sent from here: the
    launch process ends and restarts all ranks.
    """
    waiting, changes, is_news = deque(events), list[GenerationChange](), False
    orders: dict[Send, None] = {}
    while waiting:
        state, effects = live_recovery.step(state, waiting.popleft())
        for effect in effects:
            match effect:
                case StoreGeneration():
                    is_news = True
                    changes += effect.changes
                    if effect.changes:
                        orders = {o: None for o in orders if isinstance(o.message, EndProcess)}
                case Seal():
                    waiting.append(Sealed(effect.generation, saved()))
                case _:
                    orders[effect] = None
        if any(isinstance(change, RestartBegan | JobFailed) for change in changes):
            return Decision(state, True, tuple(changes))
    return Decision(state, is_news, tuple(changes), tuple(orders))


Gone = tuple[RankProcessRow, str]  # a rank that has ended, and why


class EffectRunner:
    """The attempts that are watched, as stored; time passes only where something waits for it."""

    def __init__(
        self,
        state: StateStore,
        reports: RankReports,
        commands: CommandDriver,
        checkpoint_rows: CheckpointRows,
        messages: MemberMessages,
        updates: JobUpdates,
        attempts: LiveAttempts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._reports = reports
        self._commands = commands
        self._checkpoint_rows = checkpoint_rows
        self._messages = messages
        self._updates = updates
        self._attempts = attempts
        self._clock = clock

    def begin(self, one: LiveAttempt) -> None:
        """Watch an attempt from now on."""
        one.state = dataclasses.replace(one.state, now=self._clock())
        with self._state.together():
            self._state.put(one.row())
            self._updates.begins(one)
        self._attempts.keep(one)
        self._send_launch(one)

    def answered(self, one: LiveAttempt) -> None:
        """Note that a launch process has reported since it was sent its state."""
        if one.sent_at is not None:
            one.is_due = False
            self._attempts.keep(one)

    def feed(self, one: LiveAttempt, events: Iterable[Event], gone: Sequence[Gone] = ()) -> None:
        """Handle events, with the ranks that have ended by them."""
        if is_quiet(one.state):  # no tick has set its time
            one.state = dataclasses.replace(one.state, now=self._clock())
        decision = decide(one.state, events, lambda: self._saved(one.job))
        one.state = decision.state
        if decision.is_news or gone:
            with self._state.together():
                self._store(one, decision, gone)
        self._follow(one, decision)

    def tick(self) -> None:
        """Handle the passing of time."""
        now = self._clock()
        for job in self._attempts.busy:
            one = self._attempts.get(job)
            if one is None:
                continue
            is_time = one.sent_at is None or now - one.sent_at >= AGAIN
            if is_time and (one.is_due or one.is_restarting):
                self._send_launch(one)
            if not one.is_restarting and not is_quiet(one.state):
                self.feed(one, [Tick(now)])

    def _store(self, one: LiveAttempt, decision: Decision, gone: Sequence[Gone]) -> None:
        for rank, reason in gone:
            self._reports.rank_gone(rank, reason)
        for change in decision.changes:
            self._updates.apply(one, change)
        if decision.is_news:
            self._state.put(one.row())

    def _follow(self, one: LiveAttempt, decision: Decision) -> None:
        """Send what is to be sent, now that it is stored."""
        for order in decision.orders:
            self._messages.order(one, order)
        for change in decision.changes:
            match change:
                case GenerationBegan():
                    one.whys.clear()
                    self._commands.generation_over(one.job)
                case GenerationCommitted():
                    self._commands.begin_newest(one.job)
                case _:
                    self._commands.generation_over(one.job)
                    self._send_launch(one)
        self._attempts.keep(one)

    def _send_launch(self, one: LiveAttempt) -> None:
        """Send a launch process the state of its attempt."""
        send = self._messages.restart if one.is_restarting else self._messages.watch
        if send(one):
            one.sent_at = self._clock()

    def _saved(self, job: str) -> int | None:
        """Return the step of the newest checkpoint."""
        found = self._checkpoint_rows.committed(job)
        return found[0].step if found else None
