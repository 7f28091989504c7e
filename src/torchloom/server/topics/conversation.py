"""One page, one socket: it says what it follows, and hears each topic under the name it gave."""

import asyncio
import os
import time
from collections.abc import Awaitable
from importlib.metadata import version
from typing import Any, Final

from starlette.websockets import WebSocket

from torchloom.errors import LoomError
from torchloom.server import cursors
from torchloom.server.auth import ENDED, Identities, Identity, identity_of
from torchloom.server.desk import Desk
from torchloom.server.outlets import outlet_of
from torchloom.server.topics import asked
from torchloom.server.topics.asked import BadSub, Sub, Unsub
from torchloom.server.topics.following import Following
from torchloom.server.topics.saying import Voice

NOT_TAKEN: Final = 1003  # what was said is none of what is understood here
BEAT = 2.0  # seconds between two signs of life
_GONE = "websocket.disconnect"
_MOST = 256  # topics that one page follows: a dozen runs beside each other, each in some charts


class Conversation:
    """What one page follows, and what it is told."""

    def __init__(self, websocket: WebSocket, desk: Desk, tasks: asyncio.TaskGroup) -> None:
        self._websocket = websocket
        self._state = websocket.app.state
        self._tasks = tasks
        self._who: Identity = identity_of(websocket)
        self._voice = Voice(outlet_of(websocket))
        self._following = Following(self._state, desk, self._voice, self._who)
        self._subs: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Hear the page until it goes, is too slow, or may not look any more."""
        self._voice.say(self._hello())
        others = [self._tasks.create_task(each) for each in (self._beat(), self._revoked())]
        while (said := await self._websocket.receive())["type"] != _GONE:
            self._hear(said.get("text") or said.get("bytes") or "")
        for task in (*others, *self._subs.values()):
            task.cancel()

    def _hear(self, text: str | bytes) -> None:
        try:
            message = asked.read(text)
        except LoomError as error:
            self._voice.outlet.drop(NOT_TAKEN, str(error)[:100])
            return
        if (known := self._subs.pop(message.id, None)) is not None:
            known.cancel()
        if not isinstance(message, Unsub):
            work = self._follow(message, known)
            self._subs[message.id] = self._tasks.create_task(work, name=f"sub {message.topic}")

    async def _follow(self, sub: Sub, before: Awaitable[None] | None) -> None:
        """Follow a topic until it is told otherwise; what is refused is refused in words."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)  # its last word comes first
        try:
            if len(self._subs) > _MOST:
                raise BadSub("id", f"{_MOST} topics are followed", "unsubscribe from some")
            asked.check(sub)
            position = cursors.parse(sub.after) if sub.after else None
            await self._following.follow(sub, position)
        except LoomError as error:
            self._voice.refuse(sub.id, error)
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

    async def _beat(self) -> None:
        """Say now and then that all is well, or since when it is not."""
        boards, hub = self._state.boards, self._state.live
        while self._voice.is_open:
            behind = max(boards.behind, hub.behind)
            facts = {"behind": round(behind, 1), "weaver": not boards.is_alone}
            self._voice.say({"kind": "beat", "time": time.time(), **facts})
            await asyncio.sleep(BEAT)

    async def _revoked(self) -> None:
        """Let the page go when its token does not count any more."""
        identities: Identities = self._state.identities
        await identities.watch(self._who)
        self._voice.outlet.drop(ENDED, "the token was revoked; get another and connect again")


async def converse(websocket: WebSocket, desk: Desk) -> None:
    """Serve one page until it goes."""
    await websocket.accept()
    async with asyncio.TaskGroup() as tasks:
        await Conversation(websocket, desk, tasks).run()
