"""Publish new data to all clients: each row is read once and encoded once.

The hub keeps no state for a client. What a client missed is read from its cursor on; then it
receives what all others receive. Without clients nothing is read.
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
_HELD = 4_000  # messages held for a client that catches up; with more it reads them itself
INTERVAL = 0.05  # seconds between two polls
_PATIENCE = 1.0  # seconds after a poll that failed
_MEASURED = 2.0  # seconds between two measurements of ranks
_AHEAD = 10  # polls after which a cursor beyond the stored data counts as the end
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Which messages a client wants."""

    types: frozenset[str]
    ranks: frozenset[int] | None = None

    def key(self) -> str:
        """Return a key that is equal for equal filters; it is cheaper to hash."""
        return f"{sorted(self.types)} {self.ranks and sorted(self.ranks)}"

    def wants(self, draft: StreamPayload) -> bool:
        if draft.kind not in self.types:
            return False
        return self.ranks is None or draft.rank < 0 or draft.rank in self.ranks


class Listener:
    """The subscription of one client to one job. While it is held, new messages wait."""

    sender: ClientSender  # there before it is released

    def __init__(self, job: str, wanted: StreamFilter, most_held: int = _HELD) -> None:
        self.job = job
        self.filter = wanted
        self._key = wanted.key()
        self._most_held = most_held
        self._held: list[EncodedMessage] | None = None
        self.is_overrun = False

    def hold(self) -> None:
        self._held, self.is_overrun = [], False

    def deliver(self, messages: Sequence[EncodedMessage], packets: dict[str, Packet]) -> None:
        """Deliver new messages; clients with equal filters are sent the same bytes."""
        if self._held is not None:
            self._hold(messages)
            return
        packet = packets.get(self._key)
        if packet is None:
            packet = packets[self._key] = self._packet(messages, is_shared=True)
        if packet.messages:
            self.sender.send(packet)

    def send(self, messages: Sequence[EncodedMessage]) -> None:
        """Send something to this client alone."""
        packet = self._packet(messages)
        if packet.messages:
            self.sender.send(packet)

    def release(self, at: ReaderPosition) -> None:
        """Send the held messages that lie behind a position, and hold no more."""
        held, self._held = self._held or [], None
        self.send([message for message in held if at.is_behind(message.draft)])

    def _hold(self, messages: Sequence[EncodedMessage]) -> None:
        assert self._held is not None
        if self.is_overrun or len(self._held) > self._most_held:
            self._held, self.is_overrun = [], True
        else:
            self._held += messages

    def _packet(self, messages: Sequence[EncodedMessage], is_shared: bool = False) -> Packet:
        wanted = [message for message in messages if self.filter.wants(message.draft)]
        return Packet(wanted, is_shared)


class Channel:
    """One job that has clients."""

    def __init__(self, job: str, standing: ReaderPosition) -> None:
        self.job = job
        self.standing = standing
        self.listeners: set[Listener] = set()
        self.logs: LogSource | None = None
        self._looked = 0.0

    def has(self, wanted: StreamFilter) -> bool:
        """Return whether everything that a client wants is read already."""
        return "log" not in wanted.types or (
            self.logs is not None and self.logs.follows(wanted.ranks or ())
        )

    def join(self, listener: Listener) -> ReaderPosition:
        """Add a client and hold new messages for it; return the position where these begin."""
        listener.hold()
        self.listeners.add(listener)
        return self.standing.copy()

    def follow_logs(self, access: PlaneAccess, ranks: Collection[int]) -> None:
        """Start to read logs from their present ends."""
        logs = self.logs or LogSource(access.files(self.job), self.job)
        logs.refresh(ranks)
        self.standing.follow({**logs.ends(), **(self.standing.logs or {})})
        self.logs = logs

    def read_logs(self) -> list[StreamPayload]:
        """Return new lines."""
        if self.logs is None or self.standing.logs is None:
            return []
        if time.monotonic() - self._looked > _LOGS_AGAIN:
            self._looked = time.monotonic()
            self.logs.refresh()
        return self.logs.news(self.standing.logs)

    def publish(self, drafts: Sequence[StreamPayload]) -> None:
        """Send messages that are not stored to every client."""
        self.advance(written(drafts, self.standing), self.standing)

    def advance(self, messages: Sequence[EncodedMessage], standing: ReaderPosition) -> None:
        """Send new messages to every client, and move the position."""
        self.standing = standing
        packets: dict[str, Packet] = {}
        if messages:
            for listener in self.listeners:
                listener.deliver(messages, packets)

    def wants(self, kind: str) -> bool:
        """Return whether a client wants messages of a type."""
        return any(kind in listener.filter.types for listener in self.listeners)


def written(drafts: Sequence[StreamPayload], standing: ReaderPosition) -> list[EncodedMessage]:
    """Return payloads with the cursors of a reader that takes one after the other."""
    messages = []
    for draft in drafts:
        standing.move(draft)
        messages.append(EncodedMessage(draft, text_frame(encoded(draft, standing.cursor()))))
    return messages


class Hub:
    """Reads the databases once for all clients."""

    def __init__(self, access: PlaneAccess) -> None:
        self._access = access
        self._sources = Sources(access.store)
        self._channels: dict[str, Channel] = {}
        self._at: ReaderPosition | None = None  # none without clients
        self._turn = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._failing: float | None = None  # since when polls fail
        self._meters = Meters()
        self.patterns = Patterns()

    @property
    def listeners(self) -> int:
        return sum(len(channel.listeners) for channel in self._channels.values())

    @property
    def behind(self) -> float:
        """Return for how many seconds polls have failed; zero when they succeed."""
        return 0.0 if self._failing is None else time.monotonic() - self._failing

    def standing(self, job: str) -> ReaderPosition:
        """Return the position of all clients of a job that are not held."""
        return self._channels[job].standing

    async def run(self) -> None:
        """Poll until cancelled, while there are clients."""
        while True:
            await self._wanted.wait()
            pause = _PATIENCE
            try:
                pause = INTERVAL if await self.poll() else 0.0
                self._failing = None
            except Exception:  # a server away, a lock, a bug: drivers share no class of error
                self._failing = self._failing or time.monotonic()
                _log.exception("new data could not be read; retrying")
            await asyncio.sleep(pause)

    async def poll(self) -> bool:
        """Read and send new data once; false when there is more. `run` repeats it."""
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
        """Publish the usage of ranks on this host until cancelled, to the clients that want it."""
        while True:
            await self._wanted.wait()
            for channel in [each for each in self._channels.values() if each.wants("resource")]:
                with contextlib.suppress(LoomError):  # without a database no rank is known
                    channel.publish(await self._access.read(self._measure, channel.job))
            await asyncio.sleep(_MEASURED)

    def _measure(self, job: str) -> list[StreamPayload]:
        ranks = self._access.store.state.find(RankProcessRow, job=job, state="up")
        return self._meters.measure(job, ranks[:RANKS])

    def _read(
        self, at: ReaderPosition, channels: dict[str, Channel]
    ) -> tuple[FoundPayloads, dict[str, tuple[list[EncodedMessage], ReaderPosition]]]:
        """Read new data and encode it as messages; this runs in a thread."""
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

        A job that has clients is joined at once, without waiting for a poll that is under way.
        """
        known = self._channels.get(listener.job)
        if known and known.has(listener.filter) and not _is_ahead(position, known.standing):
            return known.join(listener)
        for looks in range(_AHEAD + 1):
            async with self._turn:
                channel = await self._channel(listener)
                if looks == _AHEAD or not _is_ahead(position, channel.standing):
                    self._channels[listener.job] = channel
                    self._wanted.set()
                    return channel.join(listener)
            await self.poll()
        raise AssertionError("unreachable")

    async def catch_up(
        self, listener: Listener, position: Position | None, goal: ReaderPosition
    ) -> None:
        """Send a client what it missed before it was attached, then release its held messages."""
        channel, at = self._channels[listener.job], _begun(position, goal)
        if position is None:
            await self._greet(listener, goal)
            if not listener.is_overrun:  # nothing was missed
                listener.release(at)
                return
        while listener.sender.is_open:
            is_all = await self._send_page(channel, listener, at, goal)
            await listener.sender.drained()
            if is_all and listener.is_overrun:
                listener.hold()
                goal = channel.standing.copy()
            elif is_all:
                listener.release(at)
                return

    def leave(self, listener: Listener) -> None:
        """Remove a client."""
        channel = self._channels.get(listener.job)
        if channel is not None:
            channel.listeners.discard(listener)
            if not channel.listeners:
                del self._channels[listener.job]

    async def _channel(self, listener: Listener) -> Channel:
        """Return the channel of a job, created at the position of all others."""
        if self._at is None or not self._channels:
            self._at = await self._access.read(self._sources.now)
        channel = self._channels.get(listener.job) or Channel(listener.job, self._at.copy())
        if "log" in listener.filter.types:
            ranks = listener.filter.ranks or ()
            await self._access.read(channel.follow_logs, self._access, ranks)
        return channel

    async def _greet(self, listener: Listener, goal: ReaderPosition) -> None:
        """Send the present state of the job, with a first cursor."""
        job = await self._access.read(self._access.store.state.one, JobRow, id=listener.job)
        if job is not None:
            listener.send(written([of_job(job, goal.happened, time.time())], goal.copy()))

    async def _send_page(
        self, channel: Channel, listener: Listener, at: ReaderPosition, goal: ReaderPosition
    ) -> bool:
        """Send a page of missed messages; true when none is left."""
        found = await self._access.read(self._sources.between, listener.job, at, goal)
        listener.send(written(found.drafts, at))
        at.reach(found.upto)
        if not found.is_all or channel.logs is None or goal.logs is None or at.logs is None:
            return found.is_all
        lines, is_all = await self._access.read(channel.logs.between, at.logs, goal.logs)
        listener.send(written(lines, at))
        return is_all


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Provide a hub while an app is served."""
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
    """Return the position of a client; a source missing in its cursor starts at the goal."""
    at = goal.copy()
    if position is None:
        return at
    for name in ("happened", "reported", "arrived"):
        value = getattr(position, name)
        if value is not None:
            setattr(at, name, min(value, getattr(goal, name)))
    at.row = position.row
    if position.logs is not None and goal.logs is not None:
        at.follow(dict(position.logs))
    return at


def _is_ahead(position: Position | None, at: ReaderPosition) -> bool:
    names: tuple[Any, ...] = ("happened", "reported", "arrived")
    return position is not None and any(
        (getattr(position, name) or 0) > getattr(at, name) for name in names
    )
