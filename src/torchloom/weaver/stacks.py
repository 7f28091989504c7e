"""Have agents look at ranks and gather what they saw; who does not answer is not waited for."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence

from torchloom.bus import subjects
from torchloom.bus.codec import Reader
from torchloom.bus.messages import Stacks, TakeStacks
from torchloom.weaver.roster import Roster
from torchloom.weaver.sending import Sender, own_head
from torchloom.weaver.store.rows import Rank

PATIENCE = 8.0  # seconds; agents look twice, and at some of their ranks at a time


class StackDesk:
    """Questions under way, by name."""

    def __init__(self, roster: Roster, sender: Sender, epoch: int, dropped: Counter[str]) -> None:
        self._roster = roster
        self._sender = sender
        self._epoch = epoch
        self._dropped = dropped
        self._reader: Reader[Stacks] = Reader(Stacks, dropped)
        self._seen: dict[str, dict[str, Stacks]] = {}
        self._missing: dict[str, set[str]] = {}
        self._done: dict[str, asyncio.Event] = {}

    async def take(self, ranks: Sequence[Rank], patience: float = PATIENCE) -> dict[str, Stacks]:
        """Return what was seen of these lives, by incarnation."""
        name, agents = uuid.uuid4().hex[:16], dict[str, list[str]]()
        for rank in ranks:
            agents.setdefault(rank.agent, []).append(rank.incarnation)
        seen: dict[str, Stacks] = {}
        self._seen[name] = seen
        self._missing[name] = {rank.incarnation for rank in ranks}
        self._done[name] = done = asyncio.Event()
        for agent, lives in agents.items():
            self._sender.soon(agent, TakeStacks(own_head(), self._epoch, name, tuple(lives)))
        try:
            async with asyncio.timeout(patience if ranks else 0):
                await done.wait()
        except TimeoutError:
            pass  # what is there is there
        finally:
            for under_way in (self._seen, self._missing, self._done):
                del under_way[name]
        return seen

    async def hear(self, subject: str, data: bytes, reply: str) -> None:
        """An agent says what it saw of one of its ranks."""
        said = self._reader.read(data)
        if said is None:
            return
        rank = self._roster.of_life(said.head.incarnation)
        if rank is None or rank.agent != subjects.agent_of(subject):
            self._dropped["foreign_agent"] += 1
        elif said.head.incarnation in self._missing.get(said.request, ()):
            self._seen[said.request][said.head.incarnation] = said
            self._missing[said.request].discard(said.head.incarnation)
            if not self._missing[said.request]:
                self._done[said.request].set()
