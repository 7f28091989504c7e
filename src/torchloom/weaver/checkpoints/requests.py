"""Have agents that see the store commit and remove checkpoints: said again until it is answered.

The store itself makes saying it twice harmless, to one agent or to two. Whoever executes is the
agent of the lowest rank; where that one is gone, another that has or had ranks of the job, and last
one on the weaver's own host.
"""

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
from torchloom.weaver.checkpoints.rows import CheckpointRows, Key
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import SAVING, JobRegistry, is_over
from torchloom.weaver.sender import Sender, own_head
from torchloom.weaver.store.rows import CheckpointRow, JobRow

AGAIN, _LATEST = 2.0, 30.0  # seconds without an answer before it is said again: at first, at last
_ELSEWHERE = ("not_seen", "incomplete_checkpoint", "bad_checkpoint_root")  # another may see more
_LATER = ("store_unavailable",)
_REQUESTED = (CheckpointPhase.COMMITTING, CheckpointPhase.REMOVING)
RESTORED = "restored"  # which step the present generation went on from
LOOM = "loom"  # the author of what nobody asked for


Said: TypeAlias = Committed | Removed


@dataclass(slots=True)
class CheckpointRequest:
    """One thing that is to be done: who was asked, who cannot, and when it is said again."""

    asked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    tries: int = 0
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestReply:
    """An agent's reply. One that is not final reports a store that is unavailable for now."""

    row: CheckpointRow
    reply: Said
    is_final: bool


class CheckpointRequests:
    """What agents are to do, and what they answer."""

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
        """Say again what is not answered, by whichever weaver it was said first."""
        rows = {_name(row): row for row in self._rows.open() if row.state in _REQUESTED}
        for whose in self._requests.keys() - rows.keys():
            del self._requests[whose]
        for row in rows.values():
            self.run(row)

    def run(self, row: CheckpointRow) -> None:
        """Have somebody do what a row says, unless that was said a moment ago."""
        request = self._requests.setdefault(_name(row), CheckpointRequest())
        able = self._able(row.job)
        if self._clock() < request.due or not able:
            return
        fresh = [agent for agent in able if agent not in request.refused]
        agent = (fresh or able)[request.tries % len(fresh or able)]
        request.asked.add(agent)
        request.due = self._clock() + min(AGAIN * 2**request.tries, _LATEST)
        request.tries += 1
        self._sender.soon(agent, self._words(row))

    def receive(self, subject: str, data: bytes) -> RequestReply | None:
        """Return what an agent replies to a request; none if another agent is asked, or no one."""
        said = self._reader.read(data)
        if not isinstance(said, Committed | Removed):
            return None
        row = self._row(said)
        request = self._requests.get(_name(row)) if row else None
        if row is None or request is None:
            self._dropped["unasked"] += 1  # it is settled, or was never asked for
        elif subjects.agent_of(subject) != said.agent or said.agent not in request.asked:
            self._dropped["foreign_agent"] += 1
        elif said.code in _LATER:
            return RequestReply(row, said, is_final=False)
        elif said.code in _ELSEWHERE and not self._is_last(row, request, said.agent):
            request.due = 0.0
            self.run(row)
        else:
            return RequestReply(row, said, is_final=True)
        return None

    def _is_last(self, row: CheckpointRow, request: CheckpointRequest, agent: str) -> bool:
        """Note that one cannot; tell whether nobody is left who might."""
        request.refused.add(agent)
        return request.refused.issuperset(self._able(row.job))

    def _able(self, job: str) -> list[str]:
        """Return the agents that may see a job's store, the likeliest first."""
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

    def _row(self, said: Said) -> CheckpointRow | None:
        """Return what an answer is about, if that is still open."""
        row = self._rows.get(said.head.job, (said.step, said.generation, said.attempt))
        wanted = (
            CheckpointPhase.COMMITTING if isinstance(said, Committed) else CheckpointPhase.REMOVING
        )
        return row if row and row.state == wanted else None

    def _words(self, row: CheckpointRow) -> Commit | Remove:
        head = own_head(row.job)
        if row.state == CheckpointPhase.REMOVING:
            return Remove(head, self._epoch, row.root, *row.key)
        manifest = zlib.compress(row.manifest.encode())
        return Commit(head, self._epoch, row.root, *row.key, manifest, self._is_first_left(row))

    def _is_first_left(self, row: CheckpointRow) -> bool:
        """Tell whether no older generation of the job has a commit that is not answered."""
        others = (one for one in self._rows.open() if one.job == row.job)
        waiting = (one for one in others if one.state == CheckpointPhase.COMMITTING)
        return all(one.generation >= row.generation for one in waiting)


def _name(row: CheckpointRow) -> tuple[str, Key, str]:
    """Return by what an request is known: what is committed may have to go a moment later."""
    return row.job, row.key, row.state


class CheckpointPruning:
    """Decide what goes, store it, have an agent do it."""

    def __init__(
        self, jobs: JobRegistry, rows: CheckpointRows, requests: CheckpointRequests
    ) -> None:
        self._jobs = jobs
        self._rows = rows
        self._requests = requests
        self._tainted: dict[str, set[int]] = {}  # steps saved when a loss was not finite, by job

    def remove(self, row: CheckpointRow, author: str, reason: str) -> CheckpointRow:
        """Have a checkpoint go: that it is to go is stored, then somebody is asked."""
        row = replace(row, author=author, reason=reason, changed_at=self._rows.now())
        row = replace(row, state=str(CheckpointPhase.REMOVING))
        self._rows.put(row)
        self._requests.run(row)
        return row

    def held(self, job: JobRow) -> frozenset[int]:
        """Return the steps that must stay.

        The last committed, what the job went on from, and the last one from before a loss was not
        finite, until it is again.
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
        """Know that a loss was not finite when this was saved, before its event has come."""
        self._tainted.setdefault(row.job, set()).add(row.step)

    def thin(self, row: CheckpointRow) -> None:
        """Have those go that the job does not keep; only its present ranks say which."""
        job = self._jobs.get(row.job)
        if job is None or row.generation != job.generation:
            return
        rows = {each.step: each for each in self._rows.committed(job.id)}
        saved = [KeptCheckpoint(each.step, each.metrics) for each in rows.values()]
        for step in excess(saved, keep_rules_of(job.facts.get(SAVING) or {}), self.held(job)):
            self.remove(rows[step], LOOM, "not among those that the job keeps")

    def removed(self, row: CheckpointRow, said: Said) -> None:
        """Take in that one is gone: an agent removed it, or nobody sees its store any more."""
        if said.code not in ("", "not_seen"):
            return  # it is tried again
        gone = replace(row, state=str(CheckpointPhase.REMOVED), changed_at=self._rows.now())
        words = {"author": row.author, "reason": row.reason or said.why}
        facts = {**whose(row), "place": row.place}
        self._rows.put(gone, "checkpoint_removed", **words, facts=facts)


def whose(row: CheckpointRow) -> dict[str, Any]:
    """Return by whom a checkpoint was written, as every event of it says."""
    return {"generation": row.generation, "attempt": row.attempt}
