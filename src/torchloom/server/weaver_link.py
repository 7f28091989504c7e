"""Send requests to the weaver without blocking others, over a few connections kept open."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from torchloom.client.plane import question
from torchloom.errors import Failure, LoomError, UserError
from torchloom.server.text import whole
from torchloom.unix import HEADER, LONGEST, reachable, same_user

PATIENCE = 30.0  # seconds for an answer
_KEPT = 8  # idle connections that are kept
_AT_ONCE = 256  # requests at a time; more wait
_CALL = 2.0  # seconds for a connection to be made
_HALF = rb"\ud"  # how JSON begins half of a letter, or the first half of a pair
_AGAIN = 0.01  # seconds before the next attempt

Channel = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WeaverAway(Failure):
    """The weaver does not answer, or the connection ended before its reply."""

    code = "weaver_away"

    def __init__(self, why: str) -> None:
        super().__init__(f"the weaver does not answer: {why}")
        self.remedy = "ask again in a moment; `loom up --status` shows the state of the plane"


class WeaverRefused(LoomError):
    """The weaver refused a request; `code` is what machines match."""

    def __init__(self, reply: Mapping[str, Any]) -> None:
        super().__init__(str(reply.get("error")))
        self.code = str(reply.get("code") or self.code)
        self.exit_code = UserError.exit_code if reply.get("exit_code") == 2 else Failure.exit_code
        self.field = str(reply.get("field") or "")
        self.remedy = str(reply.get("remedy") or "")


class WeaverLink:
    """The socket of one weaver. Requests run concurrently; a restart is noticed at the next one.

    A request is never retried: one that was under way when the weaver died may have been done.
    """

    def __init__(self, door: Path) -> None:
        self._door = door
        self._idle: deque[Channel] = deque()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, name: str, /, *, patience: float = PATIENCE, **facts: Any) -> Any:
        """Return the weaver's reply; a refusal is raised as `WeaverRefused`."""
        async with self._turns:
            channel = self._kept() or await self._call()
            try:
                async with asyncio.timeout(patience):
                    reply = await _exchange(channel, question(name, facts))
            except TimeoutError:
                channel[1].close()
                raise WeaverAway(f"{name!r} had no answer within {patience:g} s") from None
            except (OSError, EOFError, ValueError) as error:
                channel[1].close()
                raise WeaverAway(f"it closed the connection before it answered {name!r}") from error
            except asyncio.CancelledError:
                channel[1].close()  # its reply is still to come
                raise
            self._keep(channel)
        if "error" in reply:
            raise WeaverRefused(reply)
        return reply.get("ok")

    async def watch(self, **facts: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield `{"event": ..., "next": cursor}` as things happen, until the weaver goes away."""
        channel = await self._call()
        try:
            await _send(channel[1], question("watch", facts))
            while True:
                reply = await _receive(channel[0])
                if "error" in reply:
                    raise WeaverRefused(reply)
                yield reply
        except (OSError, EOFError, ValueError) as error:
            raise WeaverAway("it closed the connection") from error
        finally:
            channel[1].close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def _kept(self) -> Channel | None:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    def _keep(self, channel: Channel) -> None:
        if len(self._idle) < _KEPT:
            self._idle.append(channel)
        else:
            channel[1].close()

    async def _call(self) -> Channel:
        try:
            async with asyncio.timeout(_CALL):
                found = await self._try()
                while found is None:
                    await asyncio.sleep(_AGAIN)
                    found = await self._try()
        except TimeoutError:
            raise WeaverAway("it takes no calls") from None
        except OSError as error:
            raise WeaverAway(error.strerror or str(error)) from error
        if not same_user(found[1].get_extra_info("socket")):
            found[1].close()
            raise WeaverAway("its socket belongs to another user")
        return found

    async def _try(self) -> Channel | None:
        """Connect once; return nothing when the weaver's backlog is full.

        The kernel then returns EAGAIN, which asyncio turns into a socket without a peer.
        """
        try:
            with reachable(self._door) as address:
                reader, writer = await asyncio.open_unix_connection(address)
        except BlockingIOError:
            return None
        try:
            writer.get_extra_info("socket").getpeername()
        except OSError:
            writer.close()
            return None
        return reader, writer


async def _exchange(channel: Channel, asked: Mapping[str, Any]) -> dict[str, Any]:
    reader, writer = channel
    await _send(writer, asked)
    return await _receive(reader)


async def _send(writer: asyncio.StreamWriter, asked: Mapping[str, Any]) -> None:
    text = json.dumps(asked).encode()
    writer.write(HEADER.pack(len(text), 0) + text)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
    if length > LONGEST:
        raise ConnectionError("it does not use the weaver's protocol")
    text = await reader.readexactly(length)
    reply = json.loads(text)
    if _HALF in text:
        reply = whole(reply)
    if not isinstance(reply, dict):
        raise ConnectionError("it does not use the weaver's protocol")
    return reply
