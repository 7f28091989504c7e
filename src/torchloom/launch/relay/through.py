"""The way to a plane on another host, through the launch process that this node's ranks are of.

Both sides show that they know the job's token. Then the plane vouches for the key that was made
here, and the connection goes on to its NATS, or its address is told where other hosts reach it.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from torchloom.bus.caller import Caller
from torchloom.bus.way import NoWay, new_key
from torchloom.launch import link
from torchloom.unix import HEADER

_PATIENCE = 10.0  # seconds for the launch process and its plane
_LONGEST = 1 << 20  # bytes of what they say


class Through:
    """Asks for the way whenever there is none; `find` is what the bus wants to know."""

    def __init__(self, launcher: link.Address, token: str, node: str, name: str) -> None:
        self._launcher = launcher
        self._token = token
        self._node = node
        self._name = name
        self._seed, self._key = new_key()

    async def find(self) -> Caller:
        """Return how the plane's NATS is reached; raises NoWay with what is said instead."""
        channel: socket.socket | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                channel = await self._call()
                return self._caller(await self._ask(channel), channel)
        except (OSError, ValueError, KeyError) as error:  # a timeout is an OSError
            _hang_up(channel)
            why = str(error) or type(error).__name__
            raise NoWay(f"no way to the plane through {self._launcher}: {why}") from error
        except BaseException:
            _hang_up(channel)
            raise

    async def _call(self) -> socket.socket:
        where, loop = self._launcher, asyncio.get_running_loop()
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        channel = socket.socket(family, kind, protocol)
        channel.setblocking(False)
        try:
            await loop.sock_connect(channel, address)
            link.watch(channel)
        except BaseException:
            channel.close()
            raise
        return channel

    async def _ask(self, channel: socket.socket) -> Mapping[str, Any]:
        challenge = link.nonce()
        asked = str((await _hear(channel))["challenge"])
        await _say(channel, say="proof", proof=link.proof(self._token, "agent", asked))
        await _say(channel, say="plane", node=self._node, key=self._key, challenge=challenge)
        answer = await _hear(channel)
        if not link.is_proof(answer.get("proof"), self._token, "launcher", challenge):
            raise NoWay(f"whoever answers at {self._launcher} does not know our job")
        return answer

    def _caller(self, answer: Mapping[str, Any], channel: socket.socket) -> Caller:
        if answer["do"] == "refuse":
            raise NoWay(str(answer["why"]))
        known = (str(answer["token"]), self._seed)
        if answer["do"] == "pass":
            return Caller(f"nats://{self._launcher}", self._name, known, channel=channel)
        channel.close()
        authority = str(answer["authority"])
        tls = ssl.create_default_context(cadata=authority) if authority else None
        return Caller(str(answer["nats"]), self._name, known, tls)


class Vouched:
    """Asks the plane that started this agent, over a line that was inherited from it."""

    def __init__(self, line: int, name: str) -> None:
        self._line = socket.socket(fileno=line)
        self._line.setblocking(False)
        self._name = name
        self._seed, self._key = new_key()

    async def find(self) -> Caller:
        """Return how the plane's NATS is reached; raises NoWay with what is said instead."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await _say(self._line, ask="admit", key=self._key)
                answer = await _hear(self._line)
                told = answer["ok"]
                authority = str(told["authority"])
                tls = ssl.create_default_context(cadata=authority) if authority else None
                known = (str(told["token"]), self._seed)
                return Caller(str(told["nats"]), self._name, known, tls)
        except (OSError, ValueError, KeyError) as error:  # a timeout is an OSError
            raise NoWay(f"the plane does not vouch for this agent: {error}") from error


async def _hear(channel: socket.socket) -> Mapping[str, Any]:
    """Return one message; what follows it is not touched."""
    length, _ = HEADER.unpack(await _exactly(channel, HEADER.size))
    if length > _LONGEST:
        raise ValueError("whoever answers speaks another language")
    message = json.loads(await _exactly(channel, length))
    if not isinstance(message, dict):
        raise ValueError("whoever answers speaks another language")
    return message


async def _exactly(channel: socket.socket, length: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < length:
        more = await loop.sock_recv(channel, length - len(data))
        if not more:
            raise ConnectionError("it hung up")
        data += more
    return data


async def _say(channel: socket.socket, **message: str) -> None:
    text = json.dumps(message).encode()
    await asyncio.get_running_loop().sock_sendall(channel, HEADER.pack(len(text), 0) + text)


def _hang_up(channel: socket.socket | None) -> None:
    if channel is not None:
        channel.close()
