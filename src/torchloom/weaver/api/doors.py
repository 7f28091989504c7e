"""The two doors of a weaver: a unix socket for this user, and the bus. Both speak JSON."""

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

_LONGEST = 1 << 22  # bytes of a request
_AT_ONCE = 1000  # events that are read for a watcher at a time


class BusDoor:
    """Answers requests on the bus; each is a task of its own."""

    def __init__(self, router: Router, bus: Bus) -> None:
        self._router = router
        self._bus = bus
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Subscribe to the requests that the bus may carry."""
        for name in self._router.on_the_bus:
            self._subscriptions.append(
                await self._bus.subscribe(subjects.door(name), self._received)
            )

    async def close(self) -> None:
        """Unsubscribe, and drop requests without a reply."""
        for subscription in self._subscriptions:
            await subscription.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _received(self, subject: str, data: bytes, reply: str) -> None:
        if reply:
            task = asyncio.create_task(self._answer(subject.rpartition(".")[2], data, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, name: str, data: bytes, reply: str) -> None:
        with contextlib.suppress(BusLost, StateLost):
            answer = await self._router.answer(_request(name, data))
            try:
                await self._bus.publish(reply, json.dumps(answer).encode())
            except TooLong:
                words = "the answer is too long for the bus; ask for less, with `limit`"
                shorter = {"error": words, "code": "too_long", "exit_code": 1}
                await self._bus.publish(reply, json.dumps(shorter).encode())


def _request(name: str, data: bytes) -> Any:
    """Return the request of a subject and its data; empty data are no fields."""
    try:
        facts = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return None
    return {"version": VERSION, **facts, "ask": name} if isinstance(facts, dict) else None


class Door:
    """Answers requests of this user on a unix socket, and streams events."""

    def __init__(self, router: Router, journal: Journal, path: Path) -> None:
        self._router = router
        self._journal = journal
        self._path = path
        self._own = 0
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept connections; the socket of a dead weaver is replaced."""
        listener = sockets.listen(self._path)
        self._own = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._called, sock=listener)

    async def close(self) -> None:
        """Close all connections; the socket of a later weaver is left alone."""
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
                while (asked := await _receive(reader)) is not None:
                    await self._serve(asked, reader, writer)
        except (ConnectionError, BadRequest, StateLost):
            pass  # the client has disconnected, or sends no JSON; or the weaver ends
        except asyncio.CancelledError:
            pass  # the door closes
        finally:
            writer.close()

    async def _serve(
        self, asked: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not isinstance(asked, dict) or asked.get("ask") != "watch":
            await _send(writer, await self._router.answer(asked))
            return
        try:
            request = EventsRequest.read(checked(asked))
            job = self._router.queries.job_of(request)
        except LoomError as error:
            await _send(writer, refusal(error))
            return
        await self._watch(job, request, reader, writer)

    async def _watch(
        self,
        job: str | None,
        asked: EventsRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send events from now, or from a cursor, until the client disconnects."""
        queries, watch = self._router.queries, self._journal.watch()
        after = asked.after or queries.news(None, {}, 1)["next"]
        closed = asyncio.ensure_future(reader.read(1))
        try:
            while not closed.done():
                found = await queries.aside(job, after, _AT_ONCE)
                for item in found["items"]:
                    after = _moved(after, item)
                    await _send(writer, {"event": item, "next": after})
                if not found["items"]:
                    await _either(watch.news(), closed)
            raise ConnectionError("the watcher disconnected")
        finally:
            watch.close()
            closed.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await closed


def _moved(after: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cursor after an item."""
    is_ours = item["from"] == "weaver"
    return {**after, "weaver" if is_ours else "ranks": item["seq" if is_ours else "id"]}


async def _either(news: Any, closed: asyncio.Future[bytes]) -> None:
    waiting = asyncio.ensure_future(news)
    try:
        await asyncio.wait((waiting, closed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _receive(reader: asyncio.StreamReader) -> Any:
    try:
        length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
        if length > _LONGEST:
            raise BadRequest("too long")
        return json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadRequest("this is no JSON") from error


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    text = json.dumps(message).encode()
    writer.write(HEADER.pack(len(text), 0) + text)
    await writer.drain()
