"""What is new, told to everybody who listens: read once, made into bytes once.

Nothing here is remembered for a client. What it missed is read from where its cursor stands; then
it hears what all others hear. While nobody listens nothing is read.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from torchloom.errors import LoomError
from torchloom.server.logs.patterns import Patterns
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.stream.cursors import Position
from torchloom.server.stream.frames import text_frame
from torchloom.server.stream.payloads import ReaderPosition, StreamPayload, encoded, of_job
from torchloom.server.stream.senders import ClientSender, EncodedMessage, Packet
from torchloom.server.stream.sources import RANKS, FoundPayloads, LogSource, Meters, Sources
from torchloom.weaver.store.rows import JobRow, RankProcessRow

_LOGS_AGAIN = 1.0  # seconds after which a job may have outputs that it had not
_HELD = 4_000  # messages that wait for a client to catch up; with more it reads on by itself
INTERVAL = 0.05  # seconds between two looks at what is new
_PATIENCE = 1.0  # seconds after a look that failed
_MEASURED = 2.0  # seconds between two looks at what ranks use
_AHEAD = 10  # looks after which a cursor beyond all that is stored is taken for the end
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Which messages a client wants."""

    types: frozenset[str]
    ranks: frozenset[int] | None = None

    def key(self) -> str:
        """Return what is the same for all clients of the same wish; quicker to look up."""
        return f"{sorted(self.types)} {self.ranks and sorted(self.ranks)}"

    def wants(self, draft: StreamPayload) -> bool:
        if draft.kind not in self.types:
            return False
        return self.ranks is None or draft.rank < 0 or draft.rank in self.ranks


class Listener:
    """One client's ear for one job. While it is held, what is new waits for it."""

    sender: ClientSender  # there before it is released

    def __init__(self, job: str, wish: StreamFilter, most_held: int = _HELD) -> None:
        self.job = job
        self.wish = wish
        self._key = wish.key()
        self._most_held = most_held
        self._held: list[EncodedMessage] | None = None
        self.is_overrun = False

    def hold(self) -> None:
        self._held, self.is_overrun = [], False

    def hear(self, messages: Sequence[EncodedMessage], packets: dict[str, Packet]) -> None:
        """Take what is new; clients with the same wish are sent the same bytes."""
        if self._held is not None:
            self._hold(messages)
            return
        packet = packets.get(self._key)
        if packet is None:
            packet = packets[self._key] = self._packet(messages, is_shared=True)
        if packet.messages:
            self.sender.send(packet)

    def say(self, messages: Sequence[EncodedMessage]) -> None:
        """Send something to this client alone."""
        packet = self._packet(messages)
        if packet.messages:
            self.sender.send(packet)

    def release(self, at: ReaderPosition) -> None:
        """Send what waited and is new to a client that stands there; from now on nothing waits."""
        held, self._held = self._held or [], None
        self.say([message for message in held if at.is_behind(message.draft)])

    def _hold(self, messages: Sequence[EncodedMessage]) -> None:
        assert self._held is not None
        if self.is_overrun or len(self._held) > self._most_held:
            self._held, self.is_overrun = [], True
        else:
            self._held += messages

    def _packet(self, messages: Sequence[EncodedMessage], is_shared: bool = False) -> Packet:
        wanted = [message for message in messages if self.wish.wants(message.draft)]
        return Packet(wanted, is_shared)


class Channel:
    """One job that somebody listens to."""

    def __init__(self, job: str, standing: ReaderPosition) -> None:
        self.job = job
        self.standing = standing
        self.listeners: set[Listener] = set()
        self.logs: LogSource | None = None
        self._looked = 0.0

    def has(self, wish: StreamFilter) -> bool:
        """Tell whether all that a client wants is read already."""
        return "log" not in wish.types or (
            self.logs is not None and self.logs.follows(wish.ranks or ())
        )

    def join(self, listener: Listener) -> ReaderPosition:
        """Have what is new from now on wait for a client; return where that begins."""
        listener.hold()
        self.listeners.add(listener)
        return self.standing.copy()

    def follow_logs(self, access: PlaneAccess, ranks: Collection[int]) -> None:
        """Begin to read logs, from where they end now."""
        logs = self.logs or LogSource(access.files(self.job), self.job)
        logs.look(ranks)
        self.standing.follow({**logs.ends(), **(self.standing.logs or {})})
        self.logs = logs

    def read_logs(self) -> list[StreamPayload]:
        """Return new lines."""
        if self.logs is None or self.standing.logs is None:
            return []
        if time.monotonic() - self._looked > _LOGS_AGAIN:
            self._looked = time.monotonic()
            self.logs.look()
        return self.logs.news(self.standing.logs)

    def tell(self, drafts: Sequence[StreamPayload]) -> None:
        """Send every client something that no database holds."""
        self.advance(written(drafts, self.standing), self.standing)

    def advance(self, messages: Sequence[EncodedMessage], standing: ReaderPosition) -> None:
        """Send every client what is new, and note how far each is."""
        self.standing = standing
        packets: dict[str, Packet] = {}
        if messages:
            for listener in self.listeners:
                listener.hear(messages, packets)

    def wants(self, kind: str) -> bool:
        """Tell whether anybody listens to messages of a type."""
        return any(kind in listener.wish.types for listener in self.listeners)


def written(drafts: Sequence[StreamPayload], standing: ReaderPosition) -> list[EncodedMessage]:
    """Return drafts with the cursors of a reader who takes one after the other."""
    messages = []
    for draft in drafts:
        standing.move(draft)
        messages.append(EncodedMessage(draft, text_frame(encoded(draft, standing.cursor()))))
    return messages


class Hub:
    """Reads for all, from one place in the databases."""

    def __init__(self, access: PlaneAccess) -> None:
        self._access = access
        self._sources = Sources(access.store)
        self._channels: dict[str, Channel] = {}
        self._at: ReaderPosition | None = None  # nowhere, while nobody listens
        self._turn = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._failing: float | None = None  # since when a look came to nothing
        self._meters = Meters()
        self.patterns = Patterns()

    @property
    def listeners(self) -> int:
        return sum(len(channel.listeners) for channel in self._channels.values())

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing is read, because nobody listens."""
        return self._at is None

    @property
    def behind(self) -> float:
        """Return for how many seconds what is new could not be read; zero when it is."""
        return 0.0 if self._failing is None else time.monotonic() - self._failing

    def standing(self, job: str) -> ReaderPosition:
        """Return how far everybody who listens to a job, and is not held, has been told."""
        return self._channels[job].standing

    async def run(self) -> None:
        """Look until cancelled, as long as somebody listens."""
        while True:
            await self._wanted.wait()
            pause = _PATIENCE
            try:
                pause = INTERVAL if await self.look() else 0.0
                self._failing = None
            except Exception:  # a server away, a lock, a bug: drivers share no class of error
                self._failing = self._failing or time.monotonic()
                _log.exception("what is new could not be read; it is tried again")
            await asyncio.sleep(pause)

    async def look(self) -> bool:
        """One look at what is new; false when there is more. `run` repeats it."""
        async with self._turn:
            if not self._channels or self._at is None:
                self._at = None
                self._wanted.clear()
                return True
            channels = dict(self._channels)
            found, progress = await self._access.read(self._read, self._at, channels)
            self._at = found.upto
            for job, channel in channels.items():
                channel.advance(*progress[job])
            return found.is_all

    async def measure(self) -> None:
        """Tell what ranks of this host use, until cancelled, to whoever wants to know."""
        while True:
            await self._wanted.wait()
            for channel in [each for each in self._channels.values() if each.wants("resource")]:
                with contextlib.suppress(LoomError):  # without a database nobody is known
                    channel.tell(await self._access.read(self._measure, channel.job))
            await asyncio.sleep(_MEASURED)

    def _measure(self, job: str) -> list[StreamPayload]:
        ranks = self._access.store.state.find(RankProcessRow, job=job, state="up")
        return self._meters.measure(job, ranks[:RANKS])

    def _read(
        self, at: ReaderPosition, channels: dict[str, Channel]
    ) -> tuple[FoundPayloads, dict[str, tuple[list[EncodedMessage], ReaderPosition]]]:
        """Read what is new and write it as messages; the loop serves others meanwhile."""
        lines = {job: channel.read_logs() for job, channel in channels.items()}
        found = self._sources.news(at, channels.keys())
        drafts: dict[str, list[StreamPayload]] = {job: [] for job in channels}
        for draft in found.drafts:
            drafts[draft.job].append(draft)
        progress = {}
        for job, channel in channels.items():
            standing = channel.standing.copy()
            messages = written([*drafts[job], *lines[job]], standing)
            standing.reach(found.upto)
            progress[job] = (messages, standing)
        return found, progress

    async def attach(self, listener: Listener, position: Position | None) -> ReaderPosition:
        """Have what is new from now on wait for a client; return where that begins.

        A job that others follow is joined at once, without waiting for a look that is under way.
        """
        known = self._channels.get(listener.job)
        if known and known.has(listener.wish) and not _is_ahead(position, known.standing):
            return known.join(listener)
        for looks in range(_AHEAD + 1):
            async with self._turn:
                channel = await self._channel(listener)
                if looks == _AHEAD or not _is_ahead(position, channel.standing):
                    self._channels[listener.job] = channel
                    self._wanted.set()
                    return channel.join(listener)
            await self.look()
        raise AssertionError("unreachable")

    async def tell(
        self, listener: Listener, position: Position | None, goal: ReaderPosition
    ) -> None:
        """Tell a client what it missed before it was attached, then have it hear what is new."""
        channel, at = self._channels[listener.job], _begun(position, goal)
        if position is None:
            await self._greet(listener, goal)
            if not listener.is_overrun:  # nothing was missed
                listener.release(at)
                return
        while listener.sender.is_open:
            is_all = await self._catch_up(channel, listener, at, goal)
            await listener.sender.drained()
            if is_all and listener.is_overrun:
                listener.hold()
                goal = channel.standing.copy()
            elif is_all:
                listener.release(at)
                return

    def leave(self, listener: Listener) -> None:
        """Forget a client."""
        channel = self._channels.get(listener.job)
        if channel is not None:
            channel.listeners.discard(listener)
            if not channel.listeners:
                del self._channels[listener.job]

    async def _channel(self, listener: Listener) -> Channel:
        """Return the channel of a job, made at the place that all others have reached."""
        if self._at is None or not self._channels:
            self._at = await self._access.read(self._sources.now)
        channel = self._channels.get(listener.job) or Channel(listener.job, self._at.copy())
        if "log" in listener.wish.types:
            ranks = listener.wish.ranks or ()
            await self._access.read(channel.follow_logs, self._access, ranks)
        return channel

    async def _greet(self, listener: Listener, goal: ReaderPosition) -> None:
        """Say how the job is now, with a cursor for a client that hears nothing else."""
        job = await self._access.read(self._access.store.state.one, JobRow, id=listener.job)
        if job is not None:
            listener.say(written([of_job(job, goal.happened, time.time())], goal.copy()))

    async def _catch_up(
        self, channel: Channel, listener: Listener, at: ReaderPosition, goal: ReaderPosition
    ) -> bool:
        """Send a page of what was missed; true when nothing is left of it."""
        found = await self._access.read(self._sources.between, listener.job, at, goal)
        listener.say(written(found.drafts, at))
        at.reach(found.upto)
        if not found.is_all or channel.logs is None or goal.logs is None or at.logs is None:
            return found.is_all
        lines, is_all = await self._access.read(channel.logs.between, at.logs, goal.logs)
        listener.say(written(lines, at))
        return is_all


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have a hub for as long as an app is served."""
    app.state.live = hub = Hub(app.state.access)
    work = [asyncio.create_task(each) for each in (hub.run(), hub.measure())]
    try:
        yield
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await hub.patterns.close()


def _begun(position: Position | None, goal: ReaderPosition) -> ReaderPosition:
    """Return where a client stands; what its cursor does not say is where all others are."""
    at = goal.copy()
    if position is None:
        return at
    for name in ("happened", "told", "arrived"):
        value = getattr(position, name)
        if value is not None:
            setattr(at, name, min(value, getattr(goal, name)))
    at.row = position.row
    if position.logs is not None and goal.logs is not None:
        at.follow(dict(position.logs))
    return at


def _is_ahead(position: Position | None, at: ReaderPosition) -> bool:
    names: tuple[Any, ...] = ("happened", "told", "arrived")
    return position is not None and any(
        (getattr(position, name) or 0) > getattr(at, name) for name in names
    )
