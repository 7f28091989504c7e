"""What is new, told to everybody who listens: read once, made into bytes once.

Nothing here is remembered for a client. What it missed is read from where its cursor stands; then
it hears what all others hear. While nobody listens nothing is read.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI

from torchloom.errors import LoomError
from torchloom.server.cursors import Position
from torchloom.server.desk import Desk
from torchloom.server.drafts import Draft, Standing, of_job
from torchloom.server.listeners import Channel, Listener, written
from torchloom.server.outlets import Message
from torchloom.server.patterns import Patterns
from torchloom.server.resources import Meters
from torchloom.server.sources import RANKS, Found, Sources
from torchloom.weaver.store.rows import JobRow, RankProcessRow

INTERVAL = 0.05  # seconds between two looks at what is new
_PATIENCE = 1.0  # seconds after a look that failed
_MEASURED = 2.0  # seconds between two looks at what ranks use
_AHEAD = 10  # looks after which a cursor beyond all that is stored is taken for the end
_log = logging.getLogger(__name__)


class Hub:
    """Reads for all, from one place in the databases."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._sources = Sources(desk.store)
        self._channels: dict[str, Channel] = {}
        self._at: Standing | None = None  # nowhere, while nobody listens
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

    def standing(self, job: str) -> Standing:
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
            found, progress = await self._desk.read(self._read, self._at, channels)
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
                    channel.tell(await self._desk.read(self._measure, channel.job))
            await asyncio.sleep(_MEASURED)

    def _measure(self, job: str) -> list[Draft]:
        ranks = self._desk.store.state.find(RankProcessRow, job=job, state="up")
        return self._meters.measure(job, ranks[:RANKS])

    def _read(
        self, at: Standing, channels: dict[str, Channel]
    ) -> tuple[Found, dict[str, tuple[list[Message], Standing]]]:
        """Read what is new and write it as messages; the loop serves others meanwhile."""
        lines = {job: channel.read_logs() for job, channel in channels.items()}
        found = self._sources.news(at, channels.keys())
        drafts: dict[str, list[Draft]] = {job: [] for job in channels}
        for draft in found.drafts:
            drafts[draft.job].append(draft)
        progress = {}
        for job, channel in channels.items():
            standing = channel.standing.copy()
            messages = written([*drafts[job], *lines[job]], standing)
            standing.reach(found.upto)
            progress[job] = (messages, standing)
        return found, progress

    async def attach(self, listener: Listener, position: Position | None) -> Standing:
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

    async def tell(self, listener: Listener, position: Position | None, goal: Standing) -> None:
        """Tell a client what it missed before it was attached, then have it hear what is new."""
        channel, at = self._channels[listener.job], _begun(position, goal)
        if position is None:
            await self._greet(listener, goal)
            if not listener.is_overrun:  # nothing was missed
                listener.release(at)
                return
        while listener.outlet.is_open:
            is_all = await self._catch_up(channel, listener, at, goal)
            await listener.outlet.drained()
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
            self._at = await self._desk.read(self._sources.now)
        channel = self._channels.get(listener.job) or Channel(listener.job, self._at.copy())
        if "log" in listener.wish.types:
            ranks = listener.wish.ranks or ()
            await self._desk.read(channel.follow_logs, self._desk, ranks)
        return channel

    async def _greet(self, listener: Listener, goal: Standing) -> None:
        """Say how the job is now, with a cursor for a client that hears nothing else."""
        job = await self._desk.read(self._desk.store.state.one, JobRow, id=listener.job)
        if job is not None:
            listener.say(written([of_job(job, goal.happened, time.time())], goal.copy()))

    async def _catch_up(
        self, channel: Channel, listener: Listener, at: Standing, goal: Standing
    ) -> bool:
        """Send a page of what was missed; true when nothing is left of it."""
        found = await self._desk.read(self._sources.between, listener.job, at, goal)
        listener.say(written(found.drafts, at))
        at.reach(found.upto)
        if not found.is_all or channel.logs is None or goal.logs is None or at.logs is None:
            return found.is_all
        lines, is_all = await self._desk.read(channel.logs.between, at.logs, goal.logs)
        listener.say(written(lines, at))
        return is_all


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have a hub for as long as an app is served."""
    app.state.live = hub = Hub(app.state.desk)
    work = [asyncio.create_task(each) for each in (hub.run(), hub.measure())]
    try:
        yield
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await hub.patterns.close()


def _begun(position: Position | None, goal: Standing) -> Standing:
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


def _is_ahead(position: Position | None, at: Standing) -> bool:
    names: tuple[Any, ...] = ("happened", "told", "arrived")
    return position is not None and any(
        (getattr(position, name) or 0) > getattr(at, name) for name in names
    )
