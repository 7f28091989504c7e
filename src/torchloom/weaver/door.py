"""The local door: a unix socket for this user, JSON in frames, an answer a question or a stream."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom.errors import LoomError
from torchloom.launch.host import sockets
from torchloom.unix import HEADER, same_user
from torchloom.weaver.answering import Answering, checked
from torchloom.weaver.journal import Journal
from torchloom.weaver.question import BadQuestion, Question
from torchloom.weaver.refusals import refusal
from torchloom.weaver.store import StateLost

_LONGEST = 1 << 22  # bytes of a question
_AT_ONCE = 1000  # events that a watcher is sent at a time


class Door:
    """Takes calls of this user at a path."""

    def __init__(self, answering: Answering, journal: Journal, path: Path) -> None:
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
        except (ConnectionError, BadQuestion, StateLost):
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
            question = checked(asked)
            job = self._answering.looking.meant(question)
        except LoomError as error:
            await _say(writer, refusal(error))
            return
        await self._watch(job, question, reader, writer)

    async def _watch(
        self,
        job: str | None,
        asked: Question,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send what happens from now on, or from a cursor on, until the caller hangs up."""
        looking, watch = self._answering.looking, self._journal.watch()
        after = asked.mapping("after") or looking.news(None, {}, 1)["next"]
        hung_up = asyncio.ensure_future(reader.read(1))
        try:
            while not hung_up.done():
                found = await looking.aside(job, after, _AT_ONCE)
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
            raise BadQuestion("too long")
        return json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
    except (ValueError, RecursionError) as error:
        raise BadQuestion("this is no JSON") from error


async def _say(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    text = json.dumps(message).encode()
    writer.write(HEADER.pack(len(text), 0) + text)
    await writer.drain()
