"""One page, one WebSocket: it subscribes to topics, and receives each under the id it gave."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.websockets import WebSocket

from torchloom.errors import LoomError
from torchloom.server import job_records
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.auth import ENDED, CallerIdentity, Identities, identity_of
from torchloom.server.security.policy import OPERATOR
from torchloom.server.stream import cursors
from torchloom.server.stream.cursors import Position
from torchloom.server.stream.hub import Hub, Listener, StreamFilter
from torchloom.server.stream.payloads import StreamPayload
from torchloom.server.stream.senders import TOO_SLOW, Packet, sender_of
from torchloom.server.stream.topics import cluster, jobs, socket_messages
from torchloom.server.stream.topics.boards import Boards, Read
from torchloom.server.stream.topics.logs import LogsShaper, ranks_of
from torchloom.server.stream.topics.metrics import HeatShaper, SeriesShaper
from torchloom.server.stream.topics.socket_messages import BadSub, PageWriter, Sub, Unsub
from torchloom.server.stream.topics.timeline import NO_JOB, TimelineShaper
from torchloom.server.verification import Checks

INTERVAL = 0.1  # seconds between two messages of a feed
_MOST_GATHERED = 20_000  # messages that wait for a page which reads, while the server is busy
_UNREAD = 2_000  # messages that wait for a page which does not read
_REASON = "too slow: too much is unread; connect again"
_COMMANDS, _COMMANDS_INTERVAL = 50, 0.25  # the newest, and seconds between two looks
_CHECKS_INTERVAL = 0.25
_METRICS, _EVENTS = frozenset({"metric"}), frozenset({"state", "event"})
_LINES = frozenset({"log"})
NOT_TAKEN: Final = 1003  # the message is not part of the protocol
HEARTBEAT = 2.0  # seconds between two heartbeats
_GONE = "websocket.disconnect"
_MOST = 256  # topics that one page follows: a dozen runs beside each other, each in some charts


class Shaper(Protocol):
    """Turns new payloads into the messages of a topic; it tracks what its page has."""

    async def begin(self, position: Position | None) -> Position | None:
        """Return the position to resume from; nothing when a snapshot is to be sent."""
        ...

    async def whole(self) -> None:
        """Send a snapshot."""
        ...

    async def more(self, drafts: Sequence[StreamPayload], upto: Position, is_first: bool) -> None:
        """Send a delta up to a position."""
        ...


class BufferedSender:
    """A sender that collects payloads until they are sent as one message."""

    def __init__(self, writer: PageWriter) -> None:
        self._writer = writer
        self._drafts: list[StreamPayload] = []
        self.news = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._writer.is_open

    @property
    def is_drained(self) -> bool:
        return self._writer.sender.is_drained

    def send(self, packet: Packet) -> None:
        drafts = [message.draft for message in packet.messages]
        self._drafts += [
            draft for draft in drafts if draft.move
        ]  # a payload without a move is a state, which the topic reads itself
        self.news.set()
        if len(self._drafts) > (_MOST_GATHERED if self.is_drained else _UNREAD):
            self._drafts = []
            self.drop(TOO_SLOW, _REASON)

    def drop(self, code: int, reason: str) -> None:
        self._writer.sender.drop(code, reason)

    async def drained(self) -> None:
        await self._writer.sender.drained()

    def taken(self) -> list[StreamPayload]:
        """Return what came since the last time."""
        drafts, self._drafts = self._drafts, []
        self.news.clear()
        return drafts


class Feed:
    """One subscription that grows."""

    def __init__(
        self, hub: Hub, writer: PageWriter, shaper: Shaper, listeners: Sequence[Listener]
    ) -> None:
        self._hub = hub
        self._writer = writer
        self._shaper = shaper
        self._listeners = listeners
        self._gathering = BufferedSender(writer)

    async def run(self, position: Position | None) -> None:
        """Follow until cancelled."""
        try:
            await self._begin(await self._shaper.begin(position))
            while self._writer.is_open:
                await self._gathering.news.wait()
                await self._writer.sender.drained()  # else each page has bytes of its own unread
                await self._flush()
                await asyncio.sleep(INTERVAL)
        finally:
            for listener in self._listeners:
                self._hub.leave(listener)

    async def _begin(self, position: Position | None) -> None:
        """Send a snapshot, or what was missed; nothing is lost between that and new data."""
        goals = [await self._hub.attach(each, position) for each in self._listeners]
        if position is None:
            await self._shaper.whole()
        for listener, goal in zip(self._listeners, goals, strict=True):
            listener.sender = self._gathering
            await self._hub.catch_up(listener, position, goal)
        if position is not None:
            await self._flush(is_first=True)

    async def _flush(self, is_first: bool = False) -> None:
        drafts = self._gathering.taken()
        at = self._hub.standing(self._listeners[0].job)
        upto = Position(at.happened, at.reported, at.arrived)
        await self._shaper.more(drafts, upto, is_first)
        await self._writer.sender.drained()


Items = list[dict[str, Any]]
Shape = Callable[[Any, Any], Any]  # from the known and the present value: the data to send


class Following:
    """Follows topics for one page."""

    def __init__(
        self, state: State, access: PlaneAccess, writer: PageWriter, who: CallerIdentity
    ) -> None:
        self._boards: Boards = state.boards
        self._hub: Hub = state.live
        self._rows: jobs.JobRows = state.rows
        self._checks: Checks = state.checks
        self._access = access
        self._writer = writer
        self._who = who

    async def follow(self, sub: Sub, position: Position | None) -> None:
        """Follow one topic until cancelled."""
        job = await self._access.job(sub.job) if sub.job else ""
        if sub.topic == "series":
            await self._series(sub, job, position)
        elif sub.topic == "heat":
            shaper = HeatShaper(self._access, self._writer, sub, job)
            await Feed(
                self._hub, self._writer, shaper, [Listener(job, StreamFilter(_METRICS))]
            ).run(None)
        elif sub.topic == "timeline":
            await self._timeline(sub, job, position)
        elif sub.topic == "logs":
            await self._logs(sub, job, position)
        elif sub.topic == "jobs":
            await self._board(sub, "", self._rows.read, jobs.ROWS_INTERVAL, _listed)
        elif sub.topic == "cluster":
            read = cluster.Cluster(self._boards).read
            await self._board(sub, "", read, cluster.INTERVAL, cluster.changes)
        elif sub.topic == "job":
            read = jobs.JobDetailBoard(self._boards, self._rows, job).read
            await self._board(sub, job, read, jobs.DETAIL_INTERVAL, self._detailed)
        elif sub.topic == "checks":
            await self._board(sub, job, partial(self._checked, job), _CHECKS_INTERVAL, _listed)
        else:
            await self._board(sub, job, partial(self._commands, job), _COMMANDS_INTERVAL, _listed)

    async def _series(self, sub: Sub, job: str, position: Position | None) -> None:
        ranks = frozenset(sub.ranks) if sub.ranks else None
        listener = Listener(job, StreamFilter(_METRICS, ranks))
        shaper = SeriesShaper(self._access, self._writer, sub, job)
        await Feed(self._hub, self._writer, shaper, [listener]).run(position)

    async def _timeline(self, sub: Sub, job: str, position: Position | None) -> None:
        listeners = [Listener(name, StreamFilter(_EVENTS)) for name in (job, NO_JOB)]
        shaper = TimelineShaper(self._access, self._writer, sub, job)
        await Feed(self._hub, self._writer, shaper, listeners).run(position)

    async def _logs(self, sub: Sub, job: str, position: Position | None) -> None:
        ranks = await self._access.read(ranks_of, self._access, job, sub)
        shaper = LogsShaper(self._access, self._writer, self._hub.patterns, sub, job)
        await Feed(
            self._hub, self._writer, shaper, [Listener(job, StreamFilter(_LINES, ranks))]
        ).run(position)

    async def _board(self, sub: Sub, job: str, read: Read, interval: float, shape: Shape) -> None:
        """Send a snapshot of a board, then its changes."""
        with self._boards.watched((sub.topic, job), read, interval) as board:
            known, version = None, 0
            while self._writer.is_open:
                found = await board.changed(version)
                version = board.version
                data = shape(known, found)
                if known is None:
                    self._writer.whole(sub.id, "", data)
                elif data:
                    self._writer.more(sub.id, "", data)
                known = found
                await self._writer.sender.drained()

    async def _commands(self, job: str) -> Items:
        return await self._access.read(
            job_records.newest_commands, self._access.store, job, _COMMANDS
        )

    async def _checked(self, job: str) -> Items:
        return self._checks.of(job)

    def _detailed(self, known: Any, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a job that changed; a viewer gets no verbs."""
        parts = {name: value for name, value in found.items() if not known or value != known[name]}
        if "verbs" in parts and not self._who.may(OPERATOR):
            parts["verbs"] = []
        return parts


def _listed(known: Items | None, found: Items) -> dict[str, Any]:
    """Return the items that changed, and the ids of those that were removed."""
    if known is None:
        return {"items": found}
    before = {item["id"]: item for item in known}
    gone = before.keys() - {item["id"] for item in found}
    changed = [item for item in found if before.get(item["id"]) != item]
    return {"items": changed, "gone": sorted(gone)} if changed or gone else {}


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Provide the boards while an app is served."""
    app.state.boards = boards = Boards(app.state.access)
    app.state.rows = jobs.JobRows(boards, jobs.JobPace())
    try:
        yield
    finally:
        boards.close()


class PageSession:
    """The WebSocket of one page and its subscriptions."""

    def __init__(self, websocket: WebSocket, access: PlaneAccess, tasks: asyncio.TaskGroup) -> None:
        self._websocket = websocket
        self._state = websocket.app.state
        self._tasks = tasks
        self._who: CallerIdentity = identity_of(websocket)
        self._writer = PageWriter(sender_of(websocket))
        self._following = Following(self._state, access, self._writer, self._who)
        self._subs: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve the page until it leaves, is too slow, or loses its rights."""
        self._writer.send(self._hello())
        others = [self._tasks.create_task(each) for each in (self._heartbeat(), self._revoked())]
        while (message := await self._websocket.receive())["type"] != _GONE:
            self._handle(message.get("text") or message.get("bytes") or "")
        for task in (*others, *self._subs.values()):
            task.cancel()

    def _handle(self, text: str | bytes) -> None:
        try:
            message = socket_messages.read(text)
        except LoomError as error:
            self._writer.sender.drop(NOT_TAKEN, str(error)[:100])
            return
        if (known := self._subs.pop(message.id, None)) is not None:
            known.cancel()
        if not isinstance(message, Unsub):
            work = self._follow(message, known)
            self._subs[message.id] = self._tasks.create_task(work, name=f"sub {message.topic}")

    async def _follow(self, sub: Sub, before: Awaitable[None] | None) -> None:
        """Follow a topic until it is cancelled; a refusal is sent as an error."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)  # its last message comes first
        try:
            if len(self._subs) > _MOST:
                raise BadSub("id", f"{_MOST} topics are followed", "unsubscribe from some")
            socket_messages.check(sub)
            position = cursors.parse(sub.after) if sub.after else None
            await self._following.follow(sub, position)
        except LoomError as error:
            self._writer.refuse(sub.id, error)
            if self._subs.get(sub.id) is asyncio.current_task():
                del self._subs[sub.id]

    def _hello(self) -> dict[str, Any]:
        return {
            "kind": "hello",
            "user": self._who.user,
            "role": self._who.role,
            "version": version("torchloom"),
            "pid": os.getpid(),
            "time": time.time(),
        }

    async def _heartbeat(self) -> None:
        """Send heartbeats, with the seconds for which new data could not be read."""
        boards, hub = self._state.boards, self._state.live
        while self._writer.is_open:
            behind = max(boards.behind, hub.behind)
            facts = {"behind": round(behind, 1), "weaver": not boards.is_alone}
            self._writer.send({"kind": "beat", "time": time.time(), **facts})
            await asyncio.sleep(HEARTBEAT)

    async def _revoked(self) -> None:
        """Drop the page when its token is revoked or expires."""
        identities: Identities = self._state.identities
        await identities.watch(self._who)
        self._writer.sender.drop(ENDED, "the token was revoked; get another and connect again")


async def serve_page(websocket: WebSocket, access: PlaneAccess) -> None:
    """Serve one page until it goes."""
    await websocket.accept()
    async with asyncio.TaskGroup() as tasks:
        await PageSession(websocket, access, tasks).run()
