"""Find ranks that make no progress: mark them, take stacks, store a verdict, and end them late."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchloom.bus import subjects
from torchloom.bus.codec import MessageReader
from torchloom.bus.progress_page import StepPhase
from torchloom.messages import plane
from torchloom.messages.plane import Heartbeat, Progress, Register, Stacks, TakeStacks
from torchloom.rules import hang, verdict
from torchloom.rules.hang import StackFinding
from torchloom.rules.verdict import HangVerdict, RankSamples, StackFrame, StackSample, stands
from torchloom.weaver.events import BackgroundTasks, Journal, RankProcessEnded, Sender, own_head
from torchloom.weaver.health.heartbeats import Heartbeats
from torchloom.weaver.health.responses import Responses
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import JobRegistry, is_over
from torchloom.weaver.membership.attempt import LiveAttempts
from torchloom.weaver.store.rows import RankProcessRow

PATIENCE = 8.0  # seconds; agents take two samples, of some of their ranks at a time
_GROUPS, _DEPTH = 32, 24  # of the stacks that an event keeps
_OFF = "off"


class StackRequests:
    """Requests for stacks that wait for replies, by id."""

    def __init__(self, roster: Roster, sender: Sender, epoch: int, dropped: Counter[str]) -> None:
        self._roster = roster
        self._sender = sender
        self._epoch = epoch
        self._dropped = dropped
        self._reader: MessageReader[Stacks] = MessageReader(Stacks, dropped)
        self._seen: dict[str, dict[str, Stacks]] = {}
        self._missing: dict[str, set[str]] = {}
        self._done: dict[str, asyncio.Event] = {}

    async def take(
        self, ranks: Sequence[RankProcessRow], patience: float = PATIENCE
    ) -> dict[str, Stacks]:
        """Return the stacks of these ranks, by incarnation."""
        name, agents = uuid.uuid4().hex[:16], dict[str, list[str]]()
        for rank in ranks:
            agents.setdefault(rank.agent, []).append(rank.incarnation)
        seen: dict[str, Stacks] = {}
        self._seen[name] = seen
        self._missing[name] = {rank.incarnation for rank in ranks}
        self._done[name] = done = asyncio.Event()
        for agent, incarnations in agents.items():
            self._sender.soon(agent, TakeStacks(own_head(), self._epoch, name, tuple(incarnations)))
        try:
            async with asyncio.timeout(patience if ranks else 0):
                await done.wait()
        except TimeoutError:
            pass  # the stacks that arrived are returned
        finally:
            for under_way in (self._seen, self._missing, self._done):
                del under_way[name]
        return seen

    async def on_stacks(self, subject: str, data: bytes, reply: str) -> None:
        """Handle the stacks of a rank."""
        message = self._reader.read(data)
        if message is None:
            return
        rank = self._roster.of_incarnation(message.head.incarnation)
        if rank is None or rank.agent != subjects.agent_of(subject):
            self._dropped["foreign_agent"] += 1
        elif message.head.incarnation in self._missing.get(message.request, ()):
            self._seen[message.request][message.head.incarnation] = message
            self._missing[message.request].discard(message.head.incarnation)
            if not self._missing[message.request]:
                self._done[message.request].set()


@dataclass(frozen=True, slots=True)
class StackEvidence:
    """The ranks of one role, their stacks, and the verdict on them."""

    role: str
    ranks: tuple[RankProcessRow, ...]
    standings: Mapping[int, RankSamples]
    stacks: Mapping[str, Stacks]  # by incarnation
    verdict: HangVerdict

    @property
    def finding(self) -> StackFinding:
        return verdict.finding(self.verdict, self.standings)

    def silent(self) -> list[int]:
        """Return the ranks whose threadlet did not answer."""
        incarnations = {rank.rank: self.stacks.get(rank.incarnation) for rank in self.ranks}
        return [rank for rank, seen in incarnations.items() if seen is not None and seen.is_silent]


def weigh(
    role: str,
    ranks: Sequence[RankProcessRow],
    steps: Mapping[int, int | None],
    stacks: Mapping[str, Stacks],
) -> StackEvidence:
    """Return the verdict on a role's ranks with its evidence."""
    looks = {rank.rank: _looks(stacks.get(rank.incarnation)) for rank in ranks}
    standings = {rank: RankSamples(_step(its, steps.get(rank)), its) for rank, its in looks.items()}
    return StackEvidence(role, tuple(ranks), standings, stacks, verdict.judge(standings))


def verdict_shape(found: HangVerdict) -> dict[str, Any]:
    return {
        "culprits": list(found.culprits),
        "awaited": list(found.awaited),
        "kind": str(found.kind),
        "words": found.words,
    }


def folded(evidence: StackEvidence) -> list[dict[str, Any]]:
    """Return each stack of a main thread once, with the ranks that have it; the fewest first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, standing in evidence.standings.items():
        frames = standing.looks[-1].frames if standing.looks else ()
        groups.setdefault(tuple(map(str, frames)), []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    return [{"ranks": ranks, "frames": list(frames)} for frames, ranks in ordered]


def kept_shape(evidence: StackEvidence) -> dict[str, Any]:
    """Return what an event keeps of the evidence."""
    stacks = [{**one, "frames": one["frames"][:_DEPTH]} for one in folded(evidence)[:_GROUPS]]
    return {"role": evidence.role, **verdict_shape(evidence.verdict), "stacks": stacks}


def role_shape(evidence: StackEvidence) -> dict[str, Any]:
    """Return the evidence as clients see it."""
    return {
        "role": evidence.role,
        "verdict": verdict_shape(evidence.verdict),
        "stacks": folded(evidence),
        "ranks": [_rank_shape(evidence, rank) for rank in evidence.ranks],
    }


def _rank_shape(evidence: StackEvidence, rank: RankProcessRow) -> dict[str, Any]:
    seen, standing = evidence.stacks.get(rank.incarnation), evidence.standings[rank.rank]
    last = seen.looks[-1] if seen and seen.looks else plane.ProcessSample(0.0, 0.0, "")
    sight = verdict.see(standing.looks)
    return {
        "rank": rank.rank,
        "node": rank.node,
        "pid": rank.pid,
        "step": standing.step,
        "kind": str(sight.kind),
        "moved": sight.has_moved,
        "state": last.state,
        "waits_in": last.waits_in,
        "source": last.source,
        "note": last.note if seen else "its agent did not answer",
        "threadlet": bool(seen and not seen.is_silent),
        "threads": [_thread_shape(thread) for thread in last.threads],
    }


def _thread_shape(thread: plane.Thread) -> dict[str, Any]:
    frames = [
        {"function": one.function, "file": one.file, "line": one.line, "text": one.text}
        for one in thread.frames
    ]
    return {"name": thread.name, "main": thread.is_main, "frames": frames}


def _looks(seen: Stacks | None) -> tuple[StackSample, ...]:
    if seen is None or any(not look.state for look in seen.looks):
        return ()
    return tuple(_look(look) for look in seen.looks)


def _look(look: plane.ProcessSample) -> StackSample:
    main = next((thread for thread in look.threads if thread.is_main), None)
    frames = (
        tuple(StackFrame(f.function, f.file, f.line, f.text) for f in main.frames) if main else ()
    )
    seen = StackSample(look.at, look.cpu, look.state, look.waits_in, frames)
    if look.step < 0:
        return seen
    step, phase = look.step, look.phase
    return replace(seen, step=step, phase=phase, still=look.still, lasted=look.lasted)


def _step(looks: Sequence[StackSample], beaten: int | None) -> int | None:
    """Return the step of a rank by its stacks, else by its last heartbeat, which may be older."""
    return looks[-1].step if looks and looks[-1].step is not None else beaten


Key = tuple[str, str]  # job, role


class Hangs:
    """Feed `rules/hang` with progress and stacks, a state for each role of a job."""

    def __init__(
        self,
        jobs: JobRegistry,
        roster: Roster,
        responses: Responses,
        journal: Journal,
        stack_requests: StackRequests,
        heartbeats: Heartbeats,
        attempts: LiveAttempts,
        tasks: BackgroundTasks,
    ) -> None:
        self._jobs = jobs
        self._roster = roster
        self._responses = responses
        self._journal = journal
        self._stack_requests = stack_requests
        self._heartbeats = heartbeats
        self._attempts = attempts
        self._tasks = tasks
        self._states: dict[Key, hang.State] = {}
        self._incarnations: dict[Key, dict[int, str]] = {}
        self._requests: dict[Key, asyncio.Task[None]] = {}
        self._last_verdict: dict[Key, tuple[Any, ...]] = {}
        self._options: dict[str, Mapping[str, Any]] = {}  # by job
        self.suspects: dict[str, str] = {}  # why, by incarnation

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Check the ranks that make no progress, or made none at the last heartbeat."""
        roles: dict[Key, dict[int, Progress]] = {}
        for each in heartbeat.progress:
            if each.head.incarnation in self.suspects or _may_stand(each):
                row = self._roster.of_incarnation(each.head.incarnation)
                if row is not None and (row.agent, row.state) == (heartbeat.agent, "up"):
                    roles.setdefault((row.job, row.role), {})[row.rank] = each
        for key, found in roles.items():
            self._report(key, heartbeat.sent, found)

    def registered(self, message: Register) -> None:
        """Note the job's options for hangs; every registration has them, so they are not stored."""
        if message.hang:
            self._options[message.head.job] = message.hang

    def on_rank_ended(self, ended: RankProcessEnded) -> None:
        """Drop what is known of a rank's process that has ended."""
        rank = ended.rank
        key = (rank.job, rank.role)
        self.suspects.pop(rank.incarnation, None)
        if self._incarnations.get(key, {}).get(rank.rank) != rank.incarnation:
            return
        del self._incarnations[key][rank.rank]
        self._states[key], _ = hang.step(self._states[key], hang.RankEnded(rank.rank))
        if not self._incarnations[key]:
            self._drop(key)

    async def sample(self, key: Key) -> StackEvidence:
        """Take the stacks of a role's ranks now, and judge them."""
        ranks = self._ranks(key)
        stacks = await self._stack_requests.take(ranks)
        seen = {rank.rank: self._heartbeats.progress(rank) for rank in ranks}
        steps = {rank: each.step if each else None for rank, each in seen.items()}
        return weigh(key[1], ranks, steps, stacks)

    async def close(self) -> None:
        """Cancel the requests that wait."""
        looks = list(self._requests.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    def _report(self, key: Key, now: float, found: Mapping[int, Progress]) -> None:
        options = self._options.get(key[0], {})
        if options.get("action") == _OFF or self._attempts.is_recovering(key[0]):
            return  # ranks that wait for a replacement do not hang
        self._enter(key, found)
        rows = (self._roster.of_incarnation(each.head.incarnation) for each in found.values())
        limits = limits_of(options, (row for row in rows if row))
        state = replace(self._states[key], limits=limits)
        state = self._unmute(state, found)
        progress = {rank: _progress(each) for rank, each in found.items()}
        self._states[key], effects = hang.step(state, hang.ProgressReport(now, progress))
        self._do(key, effects)

    def _enter(self, key: Key, found: Mapping[int, Progress]) -> None:
        """Add the processes of a role to the state of the rules, where one is missing."""
        known = self._incarnations.get(key, {})
        if all(known.get(rank) == each.head.incarnation for rank, each in found.items()):
            return
        for other in [other for other in self._states if self._is_over(other[0])]:
            self._drop(other)
        for job in [job for job in self._options if self._is_over(job)]:
            del self._options[job]
        state, incarnations = (
            self._states.get(key, hang.State()),
            self._incarnations.setdefault(key, {}),
        )
        for row in self._ranks(key):
            if incarnations.get(row.rank) != row.incarnation:
                self.suspects.pop(incarnations.get(row.rank, ""), None)
                incarnations[row.rank] = row.incarnation
                state, _ = hang.step(state, hang.RankStarted(row.rank))
        self._states[key] = state

    def _unmute(self, state: hang.State, found: Mapping[int, Progress]) -> hang.State:
        """Clear `is_silent` of ranks that make progress again."""
        for rank, each in found.items():
            was = state.ranks[rank]
            if was.is_silent and (was.step, was.phase) != (each.step, _phase(each)):
                state, _ = hang.step(state, hang.ThreadletState(rank, False))
        return state

    def _do(self, key: Key, effects: Iterable[hang.Effect]) -> None:
        for effect in effects:
            match effect:
                case hang.RequestStacks():
                    self._sample_soon(key)
                case hang.Suspect():
                    self.suspects[self._incarnations[key][effect.rank]] = effect.why
                    self._note("rank_suspect", key, effect.rank, effect.why)
                case hang.Cleared():
                    self.suspects.pop(self._incarnations[key][effect.rank], None)
                    self._last_verdict.pop(key, None)
                    self._note("rank_cleared", key, effect.rank, "")
                case hang.NotifyHang():
                    self._note("hang", key, effect.rank, effect.reason)
                case hang.EndHungRank():
                    row = self._roster.of_incarnation(self._incarnations[key][effect.rank])
                    if row is not None:
                        self._responses.given_up(row, effect.reason)

    def _note(self, kind: str, key: Key, rank: int, reason: str) -> None:
        step = self._states[key].ranks[rank].step
        finding = self._states[key].finding
        facts = {"words": finding.words} if kind == "hang" and finding else {}
        self._journal.note(kind, key[0], rank=rank, step=step, reason=reason, facts=facts)

    def _sample_soon(self, key: Key) -> None:
        """Take stacks in the background; a request for other ranks is cancelled."""
        if (before := self._requests.get(key)) is not None:
            before.cancel()
        self._requests[key] = self._tasks.start(self._judge(key), "stacks")

    async def _judge(self, key: Key) -> None:
        evidence = await self.sample(key)
        if key not in self._states:
            return  # its ranks have ended
        self._write_down(key, evidence)
        state = self._states[key]
        for rank in evidence.silent():
            if rank in state.ranks and state.ranks[rank].is_suspect:
                state, _ = hang.step(state, hang.ThreadletState(rank, True))
        self._states[key], effects = hang.step(state, hang.Looked(evidence.finding))
        self._do(key, effects)

    def _write_down(self, key: Key, evidence: StackEvidence) -> None:
        """Store a verdict with its stacks, unless it is the same as the last one."""
        verdict, finding = evidence.verdict, evidence.finding
        news = (verdict.culprits, verdict.kind, finding.stack, verdict.words)
        if self._last_verdict.get(key) == news:
            return
        self._last_verdict[key] = news
        rank = verdict.culprits[0] if verdict.culprits else -1
        step = evidence.standings[rank].step if verdict.culprits else None
        facts = kept_shape(evidence)
        self._journal.note(
            "verdict", key[0], rank=rank, step=step, reason=verdict.words, facts=facts
        )

    def _ranks(self, key: Key) -> list[RankProcessRow]:
        ranks = self._roster.ranks(key[0])
        return [row for row in ranks if row.role == key[1] and row.state == "up"]

    def _is_over(self, job: str) -> bool:
        known = self._jobs.get(job)
        return known is None or is_over(known)

    def _drop(self, key: Key) -> None:
        for incarnation in self._incarnations.pop(key, {}).values():
            self.suspects.pop(incarnation, None)
        self._states.pop(key, None)
        self._last_verdict.pop(key, None)
        with contextlib.suppress(KeyError):
            self._requests.pop(key).cancel()


def limits_of(options: Mapping[str, Any], ranks: Iterable[RankProcessRow]) -> hang.HangLimits:
    """Return the limits of a job; by default only ranks that use the API are killed."""
    limit, action = options.get("limit"), options.get("action")
    is_limit = isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    by_default = all(rank.boundary == "api" for rank in ranks)
    kills = action == "kill" if action in ("kill", "notify") else by_default
    return hang.HangLimits(fixed=float(limit) if is_limit and limit else None, kills=kills)


def _may_stand(seen: Progress) -> bool:
    return stands(seen.moved, seen.step_seconds)


def _progress(seen: Progress) -> hang.RankProgress:
    """Return progress as the rules know it: before its first step a rank has no boundary, and one
    that waits for an outcome or in a pause does not hang."""
    if seen.phase == StepPhase.STARTING:
        return hang.RankProgress(None)
    return hang.RankProgress(
        seen.step, _phase(seen), 0.0 if seen.phase == StepPhase.WAITING else seen.moved
    )


def _phase(seen: Progress) -> str:
    return StepPhase(seen.phase).name.lower() if seen.phase in set(StepPhase) else str(seen.phase)
