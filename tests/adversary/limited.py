"""A server process with the real protocols, limits of the test's choice and a small app.

`/` answers at once, `/slow` after a second, `/large` with 64 MB, `/body` with the length of the
body and `/headers` with the names of the headers as they are when the body has come. `/lag` returns
the longest time for which the event loop did not turn since it was last asked. Every WebSocket is
accepted, at `/slow` after a second, and sent back what it sends.
"""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 60.0
_LOOK = 0.002


class App:
    """The app: it measures how late its own timer is."""

    def __init__(self) -> None:
        self.lag = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self._probe = asyncio.create_task(self._watch())
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
        elif scope["type"] == "websocket":
            await _echo(scope["path"], receive, send)
        else:
            content = await self._content(scope, receive)
            length = str(len(content)).encode()
            headers = [(b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    async def _content(self, scope: Any, receive: Any) -> bytes:
        if scope["path"] == "/lag":
            lag, self.lag = self.lag, 0.0
            return json.dumps(lag).encode()
        if scope["path"] == "/large":
            return b"x" * (64 << 20)
        if scope["path"] == "/slow":
            await asyncio.sleep(1.0)
        if scope["path"] in ("/body", "/headers"):
            length, more = 0, True
            while more:
                message = await receive()
                length += len(message.get("body", b""))
                more = message.get("more_body", False)
            names = [name.decode() for name, _ in scope["headers"]]
            return json.dumps(length if scope["path"] == "/body" else names).encode()
        return b"here"

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_LOOK)
            self.lag = max(self.lag, time.perf_counter() - began - _LOOK)


async def _echo(path: str, receive: Any, send: Any) -> None:
    await receive()
    await asyncio.sleep(1.0 if path == "/slow" else 0.0)
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message.get("text", "")})


def main(limits: str, certificate: str, key: str, host: str = "127.0.0.1") -> None:
    """Serve until killed; the first line of the output is the port."""
    from torchloom.server.connections import ConnectionLimits, Connections
    from torchloom.server.main import Server, configuration, tls_context

    listener = socket.create_server((host, 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    table = Connections(ConnectionLimits(**json.loads(limits)))
    context = tls_context(Path(certificate), Path(key)) if certificate else None
    with tempfile.TemporaryDirectory() as folder:
        card = Path(folder) / "card"
        Server(configuration(App(), table), table, card, "", context).run([listener])


class Limited:
    """The process as a test sees it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def ask(self, path: str = "/") -> bytes:
        """Make a request on a connection of its own; return the whole response."""
        with self.connect() as channel:
            channel.sendall(request(path, "Connection: close"))
            return read_all(channel)

    def lag(self) -> float:
        return float(self.ask("/lag").rpartition(b"\r\n\r\n")[2])

    def resident(self) -> int:
        """Return the bytes that the process has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def sockets(self) -> int:
        """Return how many sockets the process has open."""
        count = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += str(link.readlink()).startswith("socket:")
        return count


def request(path: str = "/", *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def read_all(channel: socket.socket) -> bytes:
    """Return what comes until the other end closes, however it does that."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while more := channel.recv(1 << 16):
            found += more
    return found


@contextlib.contextmanager
def serving(certificate: str = "", key: str = "", **limits: Any) -> Iterator[Limited]:
    words = [sys.executable, "-P", __file__, json.dumps(limits), certificate, key]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        limited = Limited(process, int(process.stdout.readline()))
        if not certificate:
            limited.ask()
        yield limited
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
