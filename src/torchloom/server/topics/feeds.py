"""Topics that grow: what was missed since a cursor or a whole, then what is new, in their shapes.

The hub reads and keeps the places, as it does for every stream; a feed gathers what it tells and
says it a few times a second.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from torchloom.server.cursors import Position
from torchloom.server.drafts import Draft
from torchloom.server.listeners import Listener
from torchloom.server.live import Hub
from torchloom.server.outlets import TOO_SLOW, Packet
from torchloom.server.topics.saying import Voice

INTERVAL = 0.1  # seconds between two messages of a feed
_MOST = 20_000  # messages that wait for a page which reads, while the server is busy
_UNREAD = 2_000  # messages that wait for a page which does not read
_REASON = "too slow: too much is unread; connect again"


class Shaper(Protocol):
    """What a topic makes of what is new; it knows what its page has."""

    async def begin(self, position: Position | None) -> Position | None:
        """Return the place to go on from; nothing when the whole is to be said."""
        ...

    async def whole(self) -> None:
        """Say all there is."""
        ...

    async def more(self, drafts: Sequence[Draft], upto: Position, is_first: bool) -> None:
        """Say what is new, up to a place."""
        ...


class Gathering:
    """An outlet that keeps what it is sent until it is made into one message."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._drafts: list[Draft] = []
        self.news = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._voice.is_open

    @property
    def is_drained(self) -> bool:
        return self._voice.outlet.is_drained

    def send(self, packet: Packet) -> None:
        drafts = [message.draft for message in packet.messages]
        self._drafts += [draft for draft in drafts if draft.move]  # others say how things are
        self.news.set()
        if len(self._drafts) > (_MOST if self.is_drained else _UNREAD):
            self._drafts = []
            self.drop(TOO_SLOW, _REASON)

    def drop(self, code: int, reason: str) -> None:
        self._voice.outlet.drop(code, reason)

    async def drained(self) -> None:
        await self._voice.outlet.drained()

    def taken(self) -> list[Draft]:
        """Return what came since the last time."""
        drafts, self._drafts = self._drafts, []
        self.news.clear()
        return drafts


class Feed:
    """One subscription that grows."""

    def __init__(
        self, hub: Hub, voice: Voice, shaper: Shaper, listeners: Sequence[Listener]
    ) -> None:
        self._hub = hub
        self._voice = voice
        self._shaper = shaper
        self._listeners = listeners
        self._gathering = Gathering(voice)

    async def run(self, position: Position | None) -> None:
        """Follow until cancelled."""
        try:
            await self._begin(await self._shaper.begin(position))
            while self._voice.is_open:
                await self._gathering.news.wait()
                await self._voice.outlet.drained()  # else each page has bytes of its own unread
                await self._flush()
                await asyncio.sleep(INTERVAL)
        finally:
            for listener in self._listeners:
                self._hub.leave(listener)

    async def _begin(self, position: Position | None) -> None:
        """Say the whole, or what is missing; nothing is lost between that and what is new."""
        goals = [await self._hub.attach(each, position) for each in self._listeners]
        if position is None:
            await self._shaper.whole()
        for listener, goal in zip(self._listeners, goals, strict=True):
            listener.outlet = self._gathering
            await self._hub.tell(listener, position, goal)
        if position is not None:
            await self._flush(is_first=True)

    async def _flush(self, is_first: bool = False) -> None:
        drafts = self._gathering.taken()
        at = self._hub.standing(self._listeners[0].job)
        upto = Position(at.happened, at.told, at.arrived)
        await self._shaper.more(drafts, upto, is_first)
        await self._voice.outlet.drained()
