"""The rows of checkpoints, and requests to agents that commit and remove them until answered.

The store makes a repeated request harmless, also to another agent. The agent of the lowest rank is
asked first, then others that have or had ranks of the job, then those on the weaver's own host.
"""

import asyncio
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torchloom.bus import subjects
from torchloom.bus.codec import MessageReader
from torchloom.messages.plane import Commit, Committed, Message, Remove, Removed
from torchloom.rules import divergence
from torchloom.rules.checkpoints import (
    CheckpointPhase,
    KeptCheckpoint,
    excess,
    keep_rules_of,
    sound,
)
from torchloom.weaver.events import Journal, Sender, own_head
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import SAVING, JobRegistry, is_over
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import CheckpointRow, JobRow

Key = tuple[int, int, int]  # step, generation, attempt
_OPEN = (
    CheckpointPhase.WRITING,
    CheckpointPhase.COMMITTING,
    CheckpointPhase.REMOVING,
)  # not in a final state
_UNSETTLED = (CheckpointPhase.WRITING, CheckpointPhase.COMMITTING)


class CheckpointRows:
    """Only the weaver writes them, so a row is read once and cached."""

    def __init__(
        self, state: StateStore, journal: Journal, now: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._journal = journal
        self._cache: dict[str, dict[Key, CheckpointRow]] = {}
        self._dirty: dict[tuple[str, Key], CheckpointRow] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        found = state.find(CheckpointRow, state=[str(phase) for phase in _OPEN])
        self._open = {(row.job, row.key): row for row in found}
        self.now = now

    def of(self, job: str) -> list[CheckpointRow]:
        """Return all checkpoints of a job, also removed ones, newest first."""
        return sorted(self._of_job(job).values(), key=lambda row: row.key, reverse=True)

    def get(self, job: str, key: Key) -> CheckpointRow | None:
        return self._of_job(job).get(key)

    def committed(self, job: str) -> list[CheckpointRow]:
        """Return those that a job can resume from, newest first."""
        return [row for row in self.of(job) if row.state == CheckpointPhase.COMMITTED]

    def open(self) -> list[CheckpointRow]:
        """Return those that are not in a final state."""
        return list(self._open.values())

    def keep(self, row: CheckpointRow) -> None:
        """Have a row stored at the next `settle`."""
        self._dirty[row.job, row.key] = row
        self._take(row)

    def put(self, row: CheckpointRow, kind: str = "", **words: Any) -> None:
        """Store a row and, with it, that something happened."""
        self._dirty.pop((row.job, row.key), None)
        with self._state.together():
            self._state.put(row)
            if kind:
                self._journal.note(kind, row.job, step=row.step, **words)
        self._take(row)

    def note(self, row: CheckpointRow, kind: str, **words: Any) -> None:
        """Store that something happened to a checkpoint."""
        self._journal.note(kind, row.job, step=row.step, **words)

    def settle(self) -> None:
        """Store the rows that wait for it."""
        dirty, self._dirty = list(self._dirty.values()), {}
        self._state.put(*dirty)

    def forget(self, job: str) -> None:
        """Drop a removed job from the cache; the caller removes its rows."""
        self._cache.pop(job, None)
        for whose in [whose for whose in self._open if whose[0] == job]:
            del self._open[whose]

    async def settled(
        self, job: str, step: int, generation: int, patience: float
    ) -> CheckpointRow | None:
        """Wait until the checkpoint of a step is committed or failed; return it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while (found := self.meant(job, step, generation)) is None or (
                    found.state in _UNSETTLED
                ):
                    await self._change(job)
        return self.meant(job, step, generation)

    async def gone(self, row: CheckpointRow, patience: float) -> CheckpointRow:
        """Wait until a checkpoint is removed; return it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._of_job(row.job)[row.key].state == CheckpointPhase.REMOVING:
                    await self._change(row.job)
        return self._of_job(row.job)[row.key]

    def meant(self, job: str, step: int, generation: int) -> CheckpointRow | None:
        """Return the checkpoint of a step; of several, the committed one."""
        rows = [row for row in self.of(job) if row.step == step]
        fresh = [row for row in rows if row.generation >= generation]
        if fresh and all(row.state == CheckpointPhase.FAILED for row in fresh):
            fresh = rows  # an older generation had committed it already
        done = [row for row in fresh if row.state == CheckpointPhase.COMMITTED]
        return next(iter(done or fresh), None)

    async def _change(self, job: str) -> None:
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bells = self._waiters.setdefault(job, [])
        bells.append(bell)
        try:
            await bell
        finally:
            bells.remove(bell)

    def _take(self, row: CheckpointRow) -> None:
        self._of_job(row.job)[row.key] = row
        if row.state in _OPEN:
            self._open[row.job, row.key] = row
        else:
            self._open.pop((row.job, row.key), None)
        for bell in self._waiters.get(row.job, ()):
            if not bell.done():
                bell.set_result(None)

    def _of_job(self, job: str) -> dict[Key, CheckpointRow]:
        if job not in self._cache:
            self._cache[job] = {row.key: row for row in self._state.find(CheckpointRow, job=job)}
        return self._cache[job]


AGAIN, _LATEST = 2.0, 30.0  # seconds without a reply before a request is repeated: first, last
_ELSEWHERE = (
    "not_seen",
    "incomplete_checkpoint",
    "bad_checkpoint_root",
)  # another agent may reach it
_LATER = ("store_unavailable",)
_REQUESTED = (CheckpointPhase.COMMITTING, CheckpointPhase.REMOVING)
RESTORED = "restored"  # the step from which the current generation resumed
LOOM = "loom"  # the author of what no user requested


AgentReply: TypeAlias = Committed | Removed


@dataclass(slots=True)
class CheckpointRequest:
    """A request under way: which agents were asked, which cannot, and when it is repeated."""

    asked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    tries: int = 0
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestReply:
    """An agent's reply. One that is not final reports a store that is unavailable for now."""

    row: CheckpointRow
    reply: AgentReply
    is_final: bool


class CheckpointRequests:
    """The requests to agents, and their replies."""

    def __init__(
        self,
        rows: CheckpointRows,
        roster: Roster,
        sender: Sender,
        epoch: int,
        host: str,
        dropped: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = rows
        self._roster = roster
        self._sender = sender
        self._epoch = epoch
        self._host = host
        self._dropped = dropped
        self._clock = clock
        self._reader: MessageReader[Message] = MessageReader(Committed | Removed, dropped)
        self._requests: dict[tuple[str, Key, str], CheckpointRequest] = {}

    def tick(self) -> None:
        """Repeat requests without a reply, also those of an earlier weaver."""
        rows = {_name(row): row for row in self._rows.open() if row.state in _REQUESTED}
        for whose in self._requests.keys() - rows.keys():
            del self._requests[whose]
        for row in rows.values():
            self.run(row)

    def run(self, row: CheckpointRow) -> None:
        """Send the request of a row, unless it was just sent."""
        request = self._requests.setdefault(_name(row), CheckpointRequest())
        candidates = self._agents_for(row.job)
        if self._clock() < request.due or not candidates:
            return
        fresh = [agent for agent in candidates if agent not in request.refused]
        agent = (fresh or candidates)[request.tries % len(fresh or candidates)]
        request.asked.add(agent)
        request.due = self._clock() + min(AGAIN * 2**request.tries, _LATEST)
        request.tries += 1
        self._sender.soon(agent, self._message(row))

    def receive(self, subject: str, data: bytes) -> RequestReply | None:
        """Return an agent's reply; none if it was not asked, or if another agent is now."""
        reply = self._reader.read(data)
        if not isinstance(reply, Committed | Removed):
            return None
        row = self._row(reply)
        request = self._requests.get(_name(row)) if row else None
        if row is None or request is None:
            self._dropped["unasked"] += 1  # it has its reply, or was never sent
        elif subjects.agent_of(subject) != reply.agent or reply.agent not in request.asked:
            self._dropped["foreign_agent"] += 1
        elif reply.code in _LATER:
            return RequestReply(row, reply, is_final=False)
        elif reply.code in _ELSEWHERE and not self._is_last(row, request, reply.agent):
            request.due = 0.0
            self.run(row)
        else:
            return RequestReply(row, reply, is_final=True)
        return None

    def _is_last(self, row: CheckpointRow, request: CheckpointRequest, agent: str) -> bool:
        """Note that an agent cannot; tell whether no other is left."""
        request.refused.add(agent)
        return request.refused.issuperset(self._agents_for(row.job))

    def _agents_for(self, job: str) -> list[str]:
        """Return the agents that may reach a job's store, the likeliest first."""
        there = {
            agent.id: agent
            for agent in self._roster.agents()
            if agent.state == "up" and self._roster.may_speak(agent.id, job)
        }
        ranks = sorted(self._roster.ranks(job), key=lambda rank: rank.rank)
        theirs = [rank.agent for rank in ranks if rank.agent in there]
        if theirs:
            return list(dict.fromkeys(theirs))
        return sorted(agent.id for agent in there.values() if agent.host == self._host)

    def _row(self, reply: AgentReply) -> CheckpointRow | None:
        """Return the checkpoint of a reply, if it still waits for one."""
        row = self._rows.get(reply.head.job, (reply.step, reply.generation, reply.attempt))
        wanted = (
            CheckpointPhase.COMMITTING if isinstance(reply, Committed) else CheckpointPhase.REMOVING
        )
        return row if row and row.state == wanted else None

    def _message(self, row: CheckpointRow) -> Commit | Remove:
        head = own_head(row.job)
        if row.state == CheckpointPhase.REMOVING:
            return Remove(head, self._epoch, row.root, *row.key)
        manifest = zlib.compress(row.manifest.encode())
        return Commit(head, self._epoch, row.root, *row.key, manifest, self._is_first_left(row))

    def _is_first_left(self, row: CheckpointRow) -> bool:
        """Tell whether no older generation of the job has a commit without a reply."""
        others = (one for one in self._rows.open() if one.job == row.job)
        waiting = (one for one in others if one.state == CheckpointPhase.COMMITTING)
        return all(one.generation >= row.generation for one in waiting)


def _name(row: CheckpointRow) -> tuple[str, Key, str]:
    """Return the key of a request; a commit and a removal of the same checkpoint differ."""
    return row.job, row.key, row.state


class CheckpointPruning:
    """Decides which checkpoints are removed, stores that, and has an agent do it."""

    def __init__(
        self, jobs: JobRegistry, rows: CheckpointRows, requests: CheckpointRequests
    ) -> None:
        self._jobs = jobs
        self._rows = rows
        self._requests = requests
        self._tainted: dict[str, set[int]] = {}  # steps saved when a loss was not finite, by job

    def remove(self, row: CheckpointRow, author: str, reason: str) -> CheckpointRow:
        """Remove a checkpoint: store that it is to be removed, then ask an agent."""
        row = replace(row, author=author, reason=reason, changed_at=self._rows.now())
        row = replace(row, state=str(CheckpointPhase.REMOVING))
        self._rows.put(row)
        self._requests.run(row)
        return row

    def held(self, job: JobRow) -> frozenset[int]:
        """Return the steps that must stay.

        These are the last committed one, the one that the job resumed from, and while a loss is
        not finite the last one before that.
        """
        rows = self._rows.committed(job.id)
        last = max(rows, key=lambda row: row.committed_at or 0.0, default=None)
        restored = job.facts.get(RESTORED) or {}
        steps = {last.step, rows[0].step} if last else set()
        if not is_over(job) and restored.get("generation") == job.generation:
            steps.add(restored["step"])
        bad, tainted = (
            divergence.since(job.facts.get(divergence.FACT) or {}),
            self._tainted.get(job.id),
        )
        return sound((row.step for row in rows), bad, tainted or ()) | steps

    def taint(self, row: CheckpointRow) -> None:
        """Note that a loss was not finite when this was saved; the event of that comes later."""
        self._tainted.setdefault(row.job, set()).add(row.step)

    def prune(self, row: CheckpointRow) -> None:
        """Remove the checkpoints that the job's rules do not keep."""
        job = self._jobs.get(row.job)
        if job is None or row.generation != job.generation:
            return
        rows = {each.step: each for each in self._rows.committed(job.id)}
        saved = [KeptCheckpoint(each.step, each.metrics) for each in rows.values()]
        for step in excess(saved, keep_rules_of(job.facts.get(SAVING) or {}), self.held(job)):
            self.remove(rows[step], LOOM, "not among those that the job keeps")

    def removed(self, row: CheckpointRow, reply: AgentReply) -> None:
        """Store that a checkpoint is removed, or that no agent reaches its store any more."""
        if reply.code not in ("", "not_seen"):
            return  # it is repeated
        gone = replace(row, state=str(CheckpointPhase.REMOVED), changed_at=self._rows.now())
        words = {"author": row.author, "reason": row.reason or reply.why}
        facts = {**writer_of(row), "place": row.place}
        self._rows.put(gone, "checkpoint_removed", **words, facts=facts)


def writer_of(row: CheckpointRow) -> dict[str, Any]:
    """Return who wrote a checkpoint, as every event of it has it."""
    return {"generation": row.generation, "attempt": row.attempt}
