"""A server process with the real protocols, limits of the test's choice and a small app.

`/` answers at once, `/slow` after a second, `/large` with 64 MB, `/body` with the length of the
body and `/headers` with the names of the headers as they are when the body has come. `/work` takes
2 ms of the processor. `/lag` returns how long the event loop did not turn since it was last asked.
Every WebSocket is accepted, at `/slow` after a second, and sent back what it sends.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchloom.plane.nats_server import Certificate

PATIENCE = 60.0
OTHER = "127.0.0.2"  # the address of a client that has nothing to do with an attack
_LOOK = 0.002
_WORK = 0.002


@dataclass(frozen=True, slots=True)
class Lag:
    """How long an event loop did not turn, in seconds.

    Of `wall`, the longest time, `queue` is what the thread waited for a core that another process
    had. `cpu` is the most time that the thread ran between two looks, so more than one turn took.
    """

    wall: float = 0.0
    queue: float = 0.0
    cpu: float = 0.0

    def joined(self, wall: float, queue: float, cpu: float) -> "Lag":
        longest = (wall, queue) if wall > self.wall else (self.wall, self.queue)
        return Lag(*longest, max(cpu, self.cpu))


class App:
    """The app: it measures how late its own timer is."""

    def __init__(self) -> None:
        self.lag = Lag()

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
            lag, self.lag = self.lag, Lag()
            return json.dumps(asdict(lag)).encode()
        if scope["path"] == "/work":
            began = time.thread_time()
            while time.thread_time() - began < _WORK:
                pass
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
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        while True:
            began, (cpu, queue) = time.perf_counter(), _scheduled(file)
            await asyncio.sleep(_LOOK)
            wall, (cpu_now, queue_now) = time.perf_counter() - began, _scheduled(file)
            self.lag = self.lag.joined(wall - _LOOK, queue_now - queue, cpu_now - cpu)


def _scheduled(file: int) -> tuple[float, float]:
    """Return for how many seconds a thread has run, and for how many it waited for a core."""
    ran, waited, _ = os.pread(file, 100, 0).split()
    return int(ran) / 1e9, int(waited) / 1e9


async def _echo(path: str, receive: Any, send: Any) -> None:
    await receive()
    await asyncio.sleep(1.0 if path == "/slow" else 0.0)
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message.get("text", "")})


def main(limits: str, certificate: str, key: str, host: str = "127.0.0.1") -> None:
    """Serve until killed; the first line of the output is the port."""
    from torchloom.server.main import HttpServer, configuration, tls_context
    from torchloom.server.security.limits import ConnectionLimits, Connections

    listener = socket.create_server((host, 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    table = Connections(ConnectionLimits(**json.loads(limits)))
    context = tls_context(Path(certificate), Path(key)) if certificate else None
    with tempfile.TemporaryDirectory() as folder:
        card = Path(folder) / "card"
        HttpServer(configuration(App(), table), table, card, "", context).run([listener])


class Limited:
    """The process as a test sees it."""

    def __init__(
        self, process: subprocess.Popen[str], port: int, trust: ssl.SSLContext | None
    ) -> None:
        self.process, self.port, self._trust = process, port, trust

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Return a connection of a client at an address; without a handshake."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE, (source, 0))

    def open(self, source: str = "127.0.0.1") -> socket.socket:
        """Return a connection on which a request can be sent."""
        channel = self.connect(source)
        if self._trust is None:
            return channel
        return self._trust.wrap_socket(channel, server_hostname="127.0.0.1")

    def ask(self, path: str = "/", source: str = "127.0.0.1") -> bytes:
        """Make a request on a connection of its own; return the whole response."""
        with self.open(source) as channel:
            channel.sendall(request(path, "Connection: close"))
            return read_all(channel)

    def lag(self) -> Lag:
        """Return how long the event loop did not turn since this was last asked."""
        said = self.ask("/lag", OTHER)
        return Lag(**json.loads(said.rpartition(b"\r\n\r\n")[2]))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the process from running; what is sent to it meanwhile waits in the kernel."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

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
def serving(shown: Certificate | None = None, **limits: Any) -> Iterator[Limited]:
    """Give a server; one that speaks TLS where there is a certificate to be shown."""
    files = [str(shown.chain), str(shown.key)] if shown else ["", ""]
    trust = ssl.create_default_context(cafile=shown.authority) if shown else None
    words = [sys.executable, "-P", __file__, json.dumps(limits), *files]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        limited = Limited(process, int(process.stdout.readline()), trust)
        limited.ask()
        yield limited
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
