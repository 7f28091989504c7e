"""The local door: a unix socket for this user, JSON in frames, an answer a question or a stream."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, Subscription, TooLong
from torchloom.errors import LoomError
from torchloom.launch.host import sockets
from torchloom.unix import HEADER, same_user
from torchloom.weaver.api.refusals import refusal
from torchloom.weaver.api.request import BadRequest, EventsRequest
from torchloom.weaver.api.router import VERSION, Router, checked
from torchloom.weaver.journal import Journal
from torchloom.weaver.store import StateLost

_LONGEST = 1 << 22  # bytes of a question
_AT_ONCE = 1000  # events that a watcher is sent at a time


class BusDoor:
    """Answers whoever has the credentials for it; each question is a task of its own."""

    def __init__(self, answering: Router, bus: Bus) -> None:
        self._answering = answering
        self._bus = bus
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to hear questions."""
        for name in self._answering.on_the_bus:
            self._subscriptions.append(await self._bus.subscribe(subjects.door(name), self._hear))

    async def close(self) -> None:
        """Hear no more, and leave what is not answered yet."""
        for heard in self._subscriptions:
            await heard.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hear(self, subject: str, data: bytes, reply: str) -> None:
        if reply:
            task = asyncio.create_task(self._answer(subject.rpartition(".")[2], data, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, name: str, data: bytes, reply: str) -> None:
        with contextlib.suppress(BusLost, StateLost):
            said = await self._answering.answer(_question(name, data))
            try:
                await self._bus.publish(reply, json.dumps(said).encode())
            except TooLong:
                words = "the answer is too long for the bus; ask for less, with `limit`"
                shorter = {"error": words, "code": "too_long", "exit_code": 1}
                await self._bus.publish(reply, json.dumps(shorter).encode())


def _question(name: str, data: bytes) -> Any:
    """Return the question that a subject and its data are; no data are no facts."""
    try:
        facts = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return None
    return {"version": VERSION, **facts, "ask": name} if isinstance(facts, dict) else None


class Door:
    """Takes calls of this user at a path."""

    def __init__(self, answering: Router, journal: Journal, path: Path) -> None:
        self._answering = answering
        self._journal = journal
        self._path = path
        self._own = 0
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to take calls; a socket that a dead weaver left is replaced."""
        listener = sockets.listen(self._path)
        self._own = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._called, sock=listener)

    async def close(self) -> None:
        """Take no more calls and hang up; a later weaver's door is left alone."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._own:
                self._path.unlink()
        if self._server is not None:
            self._server.close()
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            if same_user(writer.get_extra_info("socket")):
                while (asked := await _hear(reader)) is not None:
                    await self._serve(asked, reader, writer)
        except (ConnectionError, BadRequest, StateLost):
            pass  # it hung up, or speaks no language of ours; or we are about to end
        except asyncio.CancelledError:
            pass  # we leave
        finally:
            writer.close()

    async def _serve(
        self, asked: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not isinstance(asked, dict) or asked.get("ask") != "watch":
            await _say(writer, await self._answering.answer(asked))
            return
        try:
            request = EventsRequest.read(checked(asked))
            job = self._answering.queries.meant(request)
        except LoomError as error:
            await _say(writer, refusal(error))
            return
        await self._watch(job, request, reader, writer)

    async def _watch(
        self,
        job: str | None,
        asked: EventsRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send what happens from now on, or from a cursor on, until the caller hangs up."""
        queries, watch = self._answering.queries, self._journal.watch()
        after = asked.after or queries.news(None, {}, 1)["next"]
        hung_up = asyncio.ensure_future(reader.read(1))
        try:
            while not hung_up.done():
                found = await queries.aside(job, after, _AT_ONCE)
                for item in found["items"]:
                    after = _moved(after, item)
                    await _say(writer, {"event": item, "next": after})
                if not found["items"]:
                    await _either(watch.news(), hung_up)
            raise ConnectionError("the watcher hung up")
        finally:
            watch.close()
            hung_up.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await hung_up


def _moved(after: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cursor behind an item."""
    is_ours = item["from"] == "weaver"
    return {**after, "weaver" if is_ours else "ranks": item["seq" if is_ours else "id"]}


async def _either(news: Any, hung_up: asyncio.Future[bytes]) -> None:
    waiting = asyncio.ensure_future(news)
    try:
        await asyncio.wait((waiting, hung_up), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _hear(reader: asyncio.StreamReader) -> Any:
    try:
        length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > _LONGEST:
            raise BadRequest("too long")
        return json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadRequest("this is no JSON") from error


async def _say(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    text = json.dumps(message).encode()
    writer.write(HEADER.pack(len(text), 0) + text)
    await writer.drain()
