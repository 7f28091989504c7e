"""What becomes of a word from a rank: it is checked, kept on the disk, and passed on if it acts.

Talk about who is a member of a job is passed on and forgotten: who has no answer says it again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from torchloom.bus.codec import MessageReader
from torchloom.bus.spool.spool import Spool, SpoolFull
from torchloom.launch.node_agent import server
from torchloom.launch.node_agent.ranks import KnownRanks
from torchloom.launch.node_agent.server import RankConnection
from torchloom.messages.membership import Lives, MembershipReport
from torchloom.messages.plane import (
    NO_RANK,
    Applied,
    Decided,
    Event,
    FromRank,
    Goodbye,
    Kept,
    Message,
    Metrics,
    OwnStacks,
    RankRefusal,
    Ready,
    Register,
)

ACTS = (Register, Ready, RankRefusal, Decided, Applied, Goodbye)  # passed on at once
_KEPT_AFTER = 1.0  # seconds until a rank learns that its records are on the disk: it costs it time


class WeaverSender(Protocol):
    """The way to the weaver."""

    greeted: bool

    def hurry(self) -> None: ...
    def act(self, data: bytes) -> None: ...
    def more(self, urgent: bool) -> None: ...


class Intake:
    """The desk of the agent's server. Everything here is done before the next word is read."""

    def __init__(
        self,
        ranks: KnownRanks,
        spool: Spool,
        up: WeaverSender,
        dropped: Counter[str],
        may_speak_for: Callable[[str, int], bool] = server.may_speak_for,
        on_stacks: Callable[[OwnStacks], None] = lambda said: None,
    ) -> None:
        self._ranks = ranks
        self._spool = spool
        self._up = up
        self._dropped = dropped
        self._may_speak_for = may_speak_for
        self._on_stacks = on_stacks
        self._reader = MessageReader[Message](FromRank | OwnStacks | MembershipReport, dropped)
        self._owed: dict[RankConnection, asyncio.TimerHandle] = {}

    def take(self, line: RankConnection, data: bytes) -> None:
        """Deal with one message."""
        message = self._reader.read(data)
        if message is None:
            return
        try:
            if isinstance(message, Register):
                self._register(line, message, data)
            elif not self._is_its_own(line, message):
                return
            elif isinstance(message, OwnStacks):
                self._on_stacks(message)
            elif isinstance(message, MembershipReport):
                self._talk(message, data)
            else:
                self._record(line, message, data)
        except SpoolFull:
            self._dropped["spool_full"] += 1
            line.close()  # the process that has it keeps it, and tries again

    def hung_up(self, line: RankConnection) -> None:
        """Note that a connection is gone."""
        if (timer := self._owed.pop(line, None)) is not None:
            timer.cancel()
        self._ranks.hung_up(line)
        self._up.hurry()

    def _register(self, line: RankConnection, message: Register, data: bytes) -> None:
        head = message.head
        if line.head is None and not self._may_speak_for(head.job, line.pid):
            self._dropped["foreign_job"] += 1
            line.close()
            return
        if line.head is not None and not self._is_its_own(line, message):
            return
        self._spool.open(head, line.pid, line.started)
        line.head = head
        if not self._ranks.register(message, line):
            self._dropped["old_life"] += 1
        else:
            self._up.act(data)
        self._tell_kept(line)

    def _is_its_own(self, line: RankConnection, message: Message) -> bool:
        """Tell whether the message is of the life that the line speaks for; count it if not."""
        own, head = line.head, message.head
        if own is None:
            self._dropped["unregistered"] += 1
        elif own.job != head.job:
            self._dropped["foreign_job"] += 1
        elif (own.rank, own.incarnation) != (head.rank, head.incarnation):
            self._dropped["foreign_rank"] += 1
        else:
            return True
        return False

    def _talk(self, message: Message, data: bytes) -> None:
        """Pass on what is said about membership, of whatever generation: the weaver answers it."""
        if isinstance(message, Lives) != (message.head.rank == NO_RANK):
            self._dropped["foreign_rank"] += 1
        elif isinstance(message, Lives) and not self._up.greeted:
            self._dropped["unheard"] += 1  # the next one, within a second, contains all of it
        else:
            self._up.act(data)

    def _record(self, line: RankConnection, message: Message, data: bytes) -> None:
        points = _points(message) if isinstance(message, Metrics) else None
        self._spool.append(message.head, data, points)
        if isinstance(message, ACTS):
            if self._ranks.is_current(message.head):
                self._up.act(data)
            else:
                self._dropped["old_generation"] += 1  # the record of it is kept all the same
        self._up.more(urgent=isinstance(message, Event))
        if line not in self._owed:
            loop = asyncio.get_running_loop()
            self._owed[line] = loop.call_later(_KEPT_AFTER, self._tell_kept, line)

    def _tell_kept(self, line: RankConnection) -> None:
        if (timer := self._owed.pop(line, None)) is not None:
            timer.cancel()
        if line.head is not None:
            line.send(Kept(line.head, self._spool.last(line.head)))


def _points(metrics: Metrics) -> int:
    """Return how many numbers are in a message; each row begins with its step and its time."""
    return sum(value is not None for row in metrics.rows for value in row[2:])
