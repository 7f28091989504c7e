"""Carry out what the rules decide about failures and losses that are not finite.

Ranks are restarted by the process that launched them; the journal has what the rules decided.
"""

import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom.messages.plane import Kill
from torchloom.rules import divergence as rules
from torchloom.rules import response
from torchloom.rules.devices import DeviceState, RankId
from torchloom.rules.divergence import FACT, Known, NonFiniteLoss
from torchloom.weaver.events import Journal, MetricsReceived, RankEventReported, Sender, head_of
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import JobRegistry, failure_policy
from torchloom.weaver.membership.live_recovery import LiveRecovery
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import JobRow, RankProcessRow

# The outcome for a job, the gravest last.
STAYS, REPLACED, RESTARTED, SHRUNK, FAILED = ("stays", "replaced", "restarted", "shrunk", "failed")
_GRAVITY = (STAYS, REPLACED, RESTARTED, SHRUNK, FAILED)
AGAIN = 1.0  # seconds after which the kill of a rank that still runs is sent again
TRIES = 30


Effects = Mapping[str, Sequence[response.Effect]]  # by device
Users = Mapping[str, Iterable[RankId]]


def impact_of(effects: Effects, users: Users) -> list[dict[str, Any]]:
    """Return for each job which ranks use these devices, which of them end, and the outcome."""
    everything = [effect for some in effects.values() for effect in some]
    changed = [name for name, some in effects.items() if some]
    using = {process for name in changed for process in users[name]}
    return [
        {
            "job": job,
            "ranks": sorted(process.rank for process in using if process.job == job),
            "ends": sorted(_ended(job, everything)),
            "then": max((_then(job, one) for one in everything), key=_GRAVITY.index),
        }
        for job in sorted({process.job for process in using})
    ]


def _ended(job: str, effects: Iterable[response.Effect]) -> set[int]:
    kills = [one for one in effects if isinstance(one, response.KillRank | response.GiveUp)]
    return {one.process.rank for one in kills if one.process.job == job}


def _then(job: str, effect: response.Effect) -> str:
    match effect:
        case response.Fail(job=name) if name == job:
            return FAILED
        case response.Shrink(job=name) if name == job:
            return SHRUNK
        case response.RestartRanks(job=name) if name == job:
            return REPLACED if effect.recovery == "live" else RESTARTED
        case response.GiveUp() if effect.process.job == job:
            return REPLACED
        case _:
            return STAYS


@dataclass(slots=True)
class _RankEnding:
    """A rank that an agent was ordered to kill."""

    rank: RankProcessRow
    reason: str
    sent_at: float
    tries: int = 1


class Responses:
    """Signals in, effects out; each is in the journal before it is sent."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        roster: Roster,
        devices: DeviceMap,
        journal: Journal,
        sender: Sender,
        live_recovery: LiveRecovery,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._roster = roster
        self._devices = devices
        self._journal = journal
        self._sender = sender
        self._live_recovery = live_recovery
        self._clock = clock
        self._ending: dict[str, _RankEnding] = {}

    def device(self, uuid: str, state: DeviceState, source: str, reason: str) -> None:
        """Respond to the report of a monitor or a user on a device."""
        with self._state.together():
            effects = self._effects(response.DeviceReported(uuid, state, reason))
            self._devices.mark(uuid, state, source, reason)
            self._note(effects)
        self._act(effects)

    def outlook(self, uuid: str, state: DeviceState) -> tuple[response.Effect, ...]:
        """Return the effects that a device state would have; nothing is done."""
        return self._effects(response.DeviceReported(uuid, state, ""))

    def on_rank_event(self, reported: RankEventReported) -> None:
        """Respond to a failure that a rank reports of itself."""
        rank, event = reported.rank, reported.event
        process = RankId(rank.job, rank.role, rank.rank)
        if event.head.generation != rank.generation:
            return  # a record of another generation
        if event.kind == "nan":
            self._respond(response.LossNotFinite(process, event.step))
        elif event.kind == "collective_error":
            words = str(event.facts.get("error") or event.facts.get("words") or "")
            self._respond(response.CollectiveFailed(process, words))

    def given_up(self, rank: RankProcessRow, reason: str) -> None:
        """Respond to a rank that hangs for good."""
        self._respond(response.RankGivenUp(RankId(rank.job, rank.role, rank.rank), reason))

    def tick(self) -> None:
        """Send kills again: a message may be lost, and an agent may have been disconnected."""
        now = self._clock()
        for incarnation, ending in list(self._ending.items()):
            present = self._roster.of_incarnation(incarnation)
            if present is None or present.state != "up" or ending.tries >= TRIES:
                del self._ending[incarnation]
            elif now - ending.sent_at >= AGAIN:
                ending.sent_at, ending.tries = now, ending.tries + 1
                self._send(ending)

    def _respond(self, failure: response.Signal) -> None:
        effects = self._effects(failure)
        with self._state.together():
            self._note(effects)
        self._act(effects)

    def _effects(self, failure: response.Signal) -> tuple[response.Effect, ...]:
        live = self._live_recovery.watched()
        policies = {
            job.id: failure_policy(job.facts, job.id in live) for job in self._jobs.active()
        }
        return response.step(response.State(self._devices.map, policies, live), failure)[1]

    def _note(self, effects: tuple[response.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case response.Mark():
                    self._mark(effect)
                case response.Notify():
                    facts: dict[str, Any] = {"words": effect.words}
                    self._journal.note(
                        "notice", effect.job or "", reason=effect.reason, facts=facts
                    )
                case response.KillRank() | response.GiveUp():
                    name = effect.process
                    self._journal.note("kill", name.job, rank=name.rank, reason=effect.reason)
                case response.Drain() | response.Shrink():
                    facts = {"groups": sorted(map(str, effect.groups))}
                    kind = "drain" if isinstance(effect, response.Drain) else "shrink"
                    self._journal.note(kind, effect.job, reason=effect.reason, facts=facts)
                case response.RestartRanks():
                    names = sorted(map(str, effect.processes))
                    facts = {"processes": names, "recovery": str(effect.recovery)}
                    self._journal.note("restart", effect.job, reason=effect.reason, facts=facts)
                case response.Fail():
                    self._journal.note("fail", effect.job, reason=effect.reason)

    def _mark(self, effect: response.Mark) -> None:
        rank = self._rank(effect.process)
        if rank is not None:
            self._roster.mark(rank, effect.reason)

    def _act(self, effects: tuple[response.Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, response.RestartRanks | response.Fail):
                self._live_recovery.close(effect.job)  # before its ranks end: that is intended
        for effect in effects:
            if isinstance(effect, response.KillRank | response.GiveUp):
                self._end(effect)

    def _end(self, effect: response.KillRank | response.GiveUp) -> None:
        rank = self._rank(effect.process)
        if rank is None or rank.state != "up":
            return
        if isinstance(effect, response.GiveUp):
            self._live_recovery.given_up(rank, effect.reason)
            return
        ending = _RankEnding(rank, effect.reason, self._clock())
        self._ending[rank.incarnation] = ending
        self._send(ending)

    def _send(self, ending: _RankEnding) -> None:
        rank, epoch = ending.rank, self._state.epoch
        kill = Kill(head_of(rank), epoch, int(signal.SIGKILL), ending.reason)
        self._sender.soon(rank.agent, kill)

    def _rank(self, name: RankId) -> RankProcessRow | None:
        return self._roster.find(name.job, name.role, name.rank)


_LONGEST = 200  # letters of a name
_NAMES = 16  # losses of one job


class LossWatch:
    """Follows the losses that ranks report; metrics are read only where one is not finite."""

    def __init__(self, jobs: JobRegistry, journal: Journal) -> None:
        self._jobs = jobs
        self._journal = journal

    def on_rank_event(self, reported: RankEventReported) -> None:
        """Note that a loss of a rank is no longer finite."""
        rank, event = reported.rank, reported.event
        job = self._jobs.get(rank.job)
        if event.kind != "nan" or job is None or event.head.generation < job.generation:
            return
        name, at = str(event.facts.get("name"))[:_LONGEST], event.facts.get("at")
        known: Known = job.facts.get(FACT) or {}
        if name not in known and len(known) >= _NAMES:
            return
        seen = NonFiniteLoss(
            name,
            str(event.facts.get("value"))[:_LONGEST],
            rank.rank,
            event.step,
            at if type(at) is int else event.step,
            event.head.generation,
        )
        self._keep(job, rules.worse(known, seen), seen)

    def on_metrics(self, received: MetricsReceived) -> None:
        """Note which losses are finite again by the metrics of a rank."""
        metrics = received.metrics
        job = self._jobs.get(metrics.head.job)
        known: Known = (job.facts.get(FACT) or {}) if job is not None else {}
        if job is None or known.keys().isdisjoint(metrics.names):
            return
        for place, name in enumerate(metrics.names, 2):
            steps = [row[0] for row in metrics.rows if len(row) > place and _is_finite(row[place])]
            last = max((step for step in steps if isinstance(step, int)), default=None)
            if name in known and last is not None:
                head = metrics.head
                known = rules.better(known, name, head.rank, last, head.generation)
        self._keep(job, known)

    def _keep(self, job: JobRow, known: Known, seen: NonFiniteLoss | None = None) -> None:
        before = job.facts.get(FACT) or {}
        if known == before:
            return
        self._jobs.mark(job.id, {FACT: dict(known)})
        was, now = rules.words(before), rules.words(known)
        if seen is not None and was != now:
            reason = rules.words({seen.name: known[seen.name]})
            self._journal.note(
                "loss_not_finite", job.id, rank=seen.rank, step=seen.step, reason=reason
            )
        for name in before.keys() - known.keys():
            reason = f"{name} is finite again"
            self._journal.note("loss_finite", job.id, reason=reason, facts={"name": name})


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]
