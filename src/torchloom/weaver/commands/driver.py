"""Carry out what `rules/control` decides: store first, then send. A restart continues from rows.

What others keep until it is stored here may be stored a moment later: an outcome stands in the
store in which the ranks of its generation met, a rank's report in its agent's spool.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from torchloom.messages import plane
from torchloom.rules.control import agreement, events
from torchloom.rules.control import command as rules
from torchloom.rules.control.command import Abort, CommandEntry, CommandKind, Outcome, Status
from torchloom.specs.states import JobState
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.events import Dispatcher, JobStopping, Sender, head_of
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import JobRegistry
from torchloom.weaver.membership.attempt import LiveAttempts
from torchloom.weaver.store.rows import RankProcessRow

ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
AT_ONCE = 0  # the step of an outcome that waits for none
_KINDS: dict[CommandKind, plane.Kind] = {
    CommandKind.KNOB: "knob",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.STOP: "stop",
    CommandKind.STOP_AT: "stop",
    CommandKind.RESIZE: "stop",  # its ranks end; others come
    CommandKind.CHECKPOINT: "checkpoint",
    CommandKind.DIGEST: "digest",
}


def prepare(head: plane.Head, entry: CommandEntry) -> plane.Prepare:
    """Return the question for a promise."""
    command = entry.command
    payload = knob_payload(command.payload) if command.kind is CommandKind.KNOB else command.payload
    kind = _KINDS[command.kind]
    return plane.Prepare(head, entry.offer_id, kind, dict(payload), command.at_step)


def planned(entry: CommandEntry) -> plane.Planned:
    """Return a decided change of knobs for ranks that come later, with the values before it."""
    payload, is_done = knob_payload(entry.command.payload), entry.status is Status.APPLIED
    if entry.acks:
        payload["before"] = _before(entry)
    return plane.Planned(entry.offer_id, entry.step or 0, payload, is_done)


def _before(entry: CommandEntry) -> dict[str, plane.Value]:
    """Return the values that a rank used before a change, by the names of the knobs."""
    before, names = entry.acks[min(entry.acks)].before, list(entry.command.payload)
    if isinstance(before, dict) and set(names) <= set(before):
        return {name: before[name] for name in names}
    return {names[0]: before} if len(names) == 1 else {}


def outcome_of(outcome: Outcome) -> tuple[int | None, str]:
    """Return the step of an outcome, and why there is none."""
    if isinstance(outcome, Abort):
        return None, outcome.why
    return (AT_ONCE if outcome.step is None else outcome.step), ""


def wrapped(values: Mapping[str, Any], hold: bool, undo: str = "") -> dict[str, Any]:
    """Return a change of knobs as the rules keep it: by name, so that a later one replaces it."""
    more = {"hold": hold, "undo": undo} if undo else {"hold": hold}
    return {name: {"value": value, **more} for name, value in values.items()}


def knob_payload(payload: Any) -> dict[str, plane.Value]:
    """Return a change of knobs as ranks take it."""
    values = {name: change["value"] for name, change in payload.items()}
    more: dict[str, Any] = {"hold": any(change["hold"] for change in payload.values())}
    if undo := next((change["undo"] for change in payload.values() if "undo" in change), ""):
        more["undo"] = undo
    if len(values) == 1:
        ((name, value),) = values.items()
        return {"name": name, "value": cast(plane.Value, value), **more}
    return {"values": values, **more}


_STOPS = (rules.CommandKind.STOP, rules.CommandKind.STOP_AT, rules.CommandKind.RESIZE)
CommandMessage = plane.Ready | plane.RankRefusal | plane.Decided | plane.Applied


class CommandDriver:
    """One state machine per job, fed with reports of ranks and with time."""

    def __init__(
        self,
        command_rows: CommandRows,
        jobs: JobRegistry,
        roster: Roster,
        sender: Sender,
        attempts: LiveAttempts,
        events: Dispatcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command_rows = command_rows
        self._jobs = jobs
        self._roster = roster
        self._sender = sender
        self._attempts = attempts
        self._events = events
        self._clock = clock
        self._states: dict[str, agreement.State] = {}
        self._members: dict[
            str, dict[int, RankProcessRow]
        ] = {}  # of the generation that commands are offered to
        self._prepared: dict[str, set[tuple[str, str]]] = {}  # offer and incarnation, by job
        self._waiting: dict[str, list[asyncio.Future[rules.CommandEntry]]] = {}
        for job in jobs.active():
            self._state(job.id)

    def state(self, job: str) -> agreement.State:
        """Return how the commands of a job stand."""
        return self._state(job)

    def status(self, job: str, command: str) -> rules.Status | None:
        """Return the status of a command of a job; None for an unknown one."""
        found = (one.status for one in self._state(job).audit if one.id == command)
        return next(found, None)

    async def ask(self, job: str, command: rules.Command, patience: float) -> rules.CommandEntry:
        """Have a command done; return its row when it has ended, or as it is when time is up."""
        done: asyncio.Future[rules.CommandEntry] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(command.id, []).append(done)
        try:
            self._feed(job, events.Asked(command))
            return await asyncio.wait_for(done, patience)
        except TimeoutError:
            return next(e for e in self._state(job).audit if e.id == command.id)
        finally:
            self._waiting[command.id].remove(done)
            if not self._waiting[command.id]:
                del self._waiting[command.id]

    def order(self, job: str, command: rules.Command) -> None:
        """Request a command without waiting for it."""
        self._feed(job, events.Asked(command))

    def withdraw(self, job: str, command: str, why: str) -> None:
        """Close a command that was not offered to ranks."""
        self._feed(job, events.Withdrawn(command, why))

    def registered(self, rank: RankProcessRow) -> None:
        """Handle a rank's registration, or its first boundary; begin the generation when whole."""
        state = self._state(rank.job)
        members = self._members.get(rank.job, {})
        known = members.get(rank.rank)
        if state.ranks and known and known.role == rank.role:
            if known.generation == rank.generation and known.incarnation != rank.incarnation:
                self._lost(rank.job, rank.rank)  # another process of the same rank
            elif known.generation == rank.generation:
                members[rank.rank] = rank
                self._bound(rank)
                return
        self._begin_if_whole(rank)

    def gone(self, rank: RankProcessRow) -> None:
        """Handle the end of a rank, and with it of the generation.

        After a stop the reports of the other ranks are still to come.
        """
        known = self._members.get(rank.job, {}).get(rank.rank)
        standing = self._state(rank.job).standing
        is_stopping = any(entry.command.kind in _STOPS for entry in standing)
        if known and known.incarnation == rank.incarnation and not is_stopping:
            self._lost(rank.job, rank.rank)

    def generation_over(self, job: str) -> None:
        """End a generation though its ranks may keep running.

        What was not decided in it is offered to the next one.
        """
        if (state := self._states.get(job)) is not None and state.ranks:
            self._lost(job, min(state.ranks))
        self._prepared.pop(job, None)

    def begin_newest(self, job: str) -> None:
        """Begin the newest generation of a job, if its ranks have registered: it trains."""
        there = [row for row in self._roster.ranks(job) if row.state == "up"]
        for row in sorted(there, key=lambda row: -row.generation)[:1]:
            self._begin_if_whole(row)

    def job_ended(self, job: str, why: str) -> None:
        """Close what is open: no rank will do anything any more."""
        if job in self._states:
            self._feed(job, events.JobEnded(why))
            for known in (self._states, self._members, self._prepared):
                known.pop(job, None)

    def on_report(self, rank: RankProcessRow, message: CommandMessage) -> None:
        """Handle what a running rank of the present generation reports about a command."""
        self._feed(rank.job, events.CommandReport(rank.rank, message))

    def settle(self) -> None:
        """Store what waits, before agents drop it."""
        self._command_rows.settle()

    def tick(self) -> None:
        """Handle the passing of time: what had no answer is sent again."""
        self.settle()
        for job in list(self._states):
            state = self._states[job]
            if state.queue or state.standing:
                self._feed(job, events.CommandTick(self._clock()))

    def _state(self, job: str) -> agreement.State:
        if job not in self._states:
            state = agreement.restore(self._command_rows.entries(job))
            self._states[job] = replace(state, now=self._clock())
        return self._states[job]

    def _begin_if_whole(self, rank: RankProcessRow) -> None:
        """Begin a generation once all its ranks have registered and one of them has boundaries."""
        membership = (rank.role, rank.generation, "up")
        if not self._roster.is_whole(rank):
            return
        everyone = self._roster.ranks(rank.job)
        rows = [row for row in everyone if (row.role, row.generation, row.state) == membership]
        state, start = self._state(rank.job), self._attempts.first_step(rank)
        if start is None or (state.ranks and state.generation >= rank.generation):
            return  # it does not train yet, or commands are offered to another role of it
        self._members[rank.job] = {row.rank: row for row in rows}
        ranks = frozenset(self._members[rank.job])
        self._states[rank.job] = replace(state, generation=rank.generation - 1)
        self._feed(rank.job, events.CommandTick(self._clock()))
        self._feed(rank.job, events.Generation(rank.generation, ranks, start))
        for row in rows:
            self._bound(row)

    def _bound(self, rank: RankProcessRow) -> None:
        state = self._state(rank.job)
        if rank.boundary != "none" and rank.rank not in state.boundaries:
            self._feed(rank.job, events.BoundaryReached(rank.rank, rank.boundary == "api"))

    def _lost(self, job: str, rank: int) -> None:
        self._feed(job, events.RankGone(rank))
        self._members.pop(job, None)

    def _feed(self, job: str, event: events.Event) -> None:
        """Handle one event: what it decides is stored before anything is sent, or may wait."""
        state, effects = agreement.step(self._state(job), event)
        stored = [effect.entry for effect in effects if isinstance(effect, events.StoreCommand)]
        if _may_wait(event, effects):
            self._command_rows.keep(job, stored)
        elif stored:
            self._command_rows.store(job, stored)
        self._states[job] = state
        for entry in stored:
            self._turn(job, entry)
        for effect in effects:
            self._do(job, effect)

    def _turn(self, job: str, entry: rules.CommandEntry) -> None:
        """Have the job's state follow what its ranks did."""
        kind, author = entry.command.kind, entry.command.author or "user"
        if entry.status is not rules.Status.APPLIED or not entry.acks:
            return
        if kind is rules.CommandKind.PAUSE and not entry.why:
            self._jobs.turn(job, JobState.PAUSED, f"paused_by_{author}")
        elif kind is rules.CommandKind.RESUME:
            self._jobs.turn(job, JobState.RUNNING, f"resumed_by_{author}")
        elif kind in _STOPS:
            self._events.publish(JobStopping(job))

    def _do(self, job: str, effect: events.Effect) -> None:
        match effect:
            case events.SendPrepare():
                for rank in self._rows(job, effect.ranks):
                    self._prepare(rank, effect.entry)
            case events.AskWrite():
                for rank in self._rows(job, (effect.rank,)):
                    step = effect.outcome.step
                    assert step is not None
                    message = plane.Write(head_of(rank), effect.entry.offer_id, step)
                    self._sender.soon(rank.agent, message)
            case events.SendOutcome():
                for rank in self._rows(job, effect.ranks):
                    self._send_outcome(rank, effect)
            case events.CommandDone():
                for done in self._waiting.get(effect.entry.id, ()):
                    if not done.done():
                        done.set_result(effect.entry)
            case events.StoreCommand():
                pass

    def _prepare(self, rank: RankProcessRow, entry: rules.CommandEntry) -> None:
        self._prepared.setdefault(rank.job, set()).add((entry.offer_id, rank.incarnation))
        self._sender.soon(rank.agent, prepare(head_of(rank), entry))

    def _send_outcome(self, rank: RankProcessRow, effect: events.SendOutcome) -> None:
        """Send an outcome; a rank that registered later needs the Prepare first."""
        entry = effect.entry
        if (entry.offer_id, rank.incarnation) not in self._prepared.get(rank.job, ()):
            self._prepare(rank, entry)
        effective, why = outcome_of(effect.outcome)
        message = plane.Outcome(head_of(rank), entry.offer_id, effective, why)
        self._sender.soon(rank.agent, message)

    def _rows(self, job: str, ranks: Iterable[int]) -> list[RankProcessRow]:
        members = self._members.get(job, {})
        return [members[rank] for rank in sorted(ranks) if rank in members]


def _may_wait(event: events.Event, effects: Iterable[events.Effect]) -> bool:
    """Return whether a rank reports only what is kept elsewhere, and no request waits for it."""
    match event:
        case events.CommandReport(_, plane.Decided() | plane.Applied()):
            kinds = events.StoreCommand | events.SendOutcome
            return all(isinstance(effect, kinds) for effect in effects)
    return False
