"""Have agents that see the store commit and remove checkpoints: said again until it is answered.

The store itself makes saying it twice harmless, to one agent or to two. Whoever executes is the
agent of the lowest rank; where that one is gone, another that has or had ranks of the job, and last
one on the weaver's own host.
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from torchloom.bus import subjects
from torchloom.bus.codec import Reader
from torchloom.bus.messages import Commit, Committed, Message, Remove, Removed
from torchloom.rules.committing import Phase
from torchloom.weaver.roster import Roster
from torchloom.weaver.sending import Sender, own_head
from torchloom.weaver.shelf import Key, Shelf
from torchloom.weaver.store.rows import Checkpoint

AGAIN, _LATEST = 2.0, 30.0  # seconds without an answer before it is said again: at first, at last
_ELSEWHERE = ("not_seen", "incomplete_checkpoint", "bad_checkpoint_root")  # another may see more
_LATER = ("store_unavailable",)
_ERRANDS = (Phase.COMMITTING, Phase.REMOVING)

Said: TypeAlias = Committed | Removed


@dataclass(slots=True)
class Errand:
    """One thing that is to be done: who was asked, who cannot, and when it is said again."""

    asked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    tries: int = 0
    due: float = 0.0


class Errands:
    """What agents are to do, and what they answer."""

    def __init__(
        self,
        shelf: Shelf,
        roster: Roster,
        sender: Sender,
        epoch: int,
        host: str,
        dropped: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shelf = shelf
        self._roster = roster
        self._sender = sender
        self._epoch = epoch
        self._host = host
        self._dropped = dropped
        self._clock = clock
        self._reader: Reader[Message] = Reader(Committed | Removed, dropped)
        self._errands: dict[tuple[str, Key, str], Errand] = {}
        self.on_done: Callable[[Checkpoint, Said], None] = lambda row, said: None
        self.on_later: Callable[[Checkpoint, Said], None] = lambda row, said: None

    def tick(self) -> None:
        """Say again what is not answered, by whichever weaver it was said first."""
        rows = {_name(row): row for row in self._shelf.open() if row.state in _ERRANDS}
        for whose in self._errands.keys() - rows.keys():
            del self._errands[whose]
        for row in rows.values():
            self.run(row)

    def run(self, row: Checkpoint) -> None:
        """Have somebody do what a row says, unless that was said a moment ago."""
        errand = self._errands.setdefault(_name(row), Errand())
        able = self._able(row.job)
        if self._clock() < errand.due or not able:
            return
        fresh = [agent for agent in able if agent not in errand.refused]
        agent = (fresh or able)[errand.tries % len(fresh or able)]
        errand.asked.add(agent)
        errand.due = self._clock() + min(AGAIN * 2**errand.tries, _LATEST)
        errand.tries += 1
        self._sender.soon(agent, self._words(row))

    async def hear(self, subject: str, data: bytes, reply: str) -> None:
        """An agent says what became of something that it was to do."""
        said = self._reader.read(data)
        if not isinstance(said, Committed | Removed):
            return
        row = self._row(said)
        errand = self._errands.get(_name(row)) if row else None
        if row is None or errand is None:
            self._dropped["unasked"] += 1  # it is settled, or was never asked for
        elif subjects.agent_of(subject) != said.agent or said.agent not in errand.asked:
            self._dropped["foreign_agent"] += 1
        elif said.code in _LATER:
            self.on_later(row, said)
        elif said.code in _ELSEWHERE and not self._is_last(row, errand, said.agent):
            errand.due = 0.0
            self.run(row)
        else:
            self.on_done(row, said)

    def _is_last(self, row: Checkpoint, errand: Errand, agent: str) -> bool:
        """Note that one cannot; tell whether nobody is left who might."""
        errand.refused.add(agent)
        return errand.refused.issuperset(self._able(row.job))

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

    def _row(self, said: Said) -> Checkpoint | None:
        """Return what an answer is about, if that is still open."""
        row = self._shelf.get(said.head.job, (said.step, said.generation, said.attempt))
        wanted = Phase.COMMITTING if isinstance(said, Committed) else Phase.REMOVING
        return row if row and row.state == wanted else None

    def _words(self, row: Checkpoint) -> Commit | Remove:
        head = own_head(row.job)
        if row.state == Phase.REMOVING:
            return Remove(head, self._epoch, row.root, *row.key)
        manifest = zlib.compress(row.manifest.encode())
        return Commit(head, self._epoch, row.root, *row.key, manifest, self._is_first_left(row))

    def _is_first_left(self, row: Checkpoint) -> bool:
        """Tell whether no older generation of the job has a commit that is not answered."""
        others = (one for one in self._shelf.open() if one.job == row.job)
        waiting = (one for one in others if one.state == Phase.COMMITTING)
        return all(one.generation >= row.generation for one in waiting)


def _name(row: Checkpoint) -> tuple[str, Key, str]:
    """Return by what an errand is known: what is committed may have to go a moment later."""
    return row.job, row.key, row.state
