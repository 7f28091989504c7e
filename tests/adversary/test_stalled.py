"""WebSockets that are opened, follow a busy job and never read: opened at once, at no cost."""

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness import evidence
from ..harness.home import until
from ..harness.metric_senders import Launched, Teller
from ..harness.server_plane import PATIENCE, Plane, Server, running

pytestmark = pytest.mark.process
MIB = 1 << 20
GROWN = 32.0  # MiB of resident memory for all of them, those of the first reads included
WRITER = """
import sys, time, pathlib
from torchloom.launch.logs.files import LogFiles
files = [LogFiles(pathlib.Path(folder)) for folder in sys.argv[2:]]
lines, step = int(sys.argv[1]), 0
while True:
    began, step = time.monotonic(), step + 1
    for each in files:
        each.write("stdout", (f"step {step} " + "x" * 100 + "\\n").encode() * lines)
    time.sleep(max(0.0, 0.02 - (time.monotonic() - began)))
"""


class Busy:
    """A job whose ranks print and log without end."""

    def __init__(self, plane: Plane, ranks: int, lines: int) -> None:
        self.plane = plane
        launched = Launched(plane, "job-1", ranks)
        folders = [str(launched.folder / "logs" / "trainer" / "0" / str(n)) for n in range(5)]
        self._words = [sys.executable, "-P", "-c", WRITER, str(lines), *folders]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell)

    def __enter__(self) -> "Busy":
        self._stack = contextlib.ExitStack()
        self._teller = self._stack.enter_context(Teller(self.plane, "job-1"))
        self._writer = subprocess.Popen(self._words, env=self.plane.env)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.kill()
        self._writer.wait()
        self._over.set()
        self._thread.join(PATIENCE)
        self._stack.close()

    def _tell(self) -> None:
        step = 0
        while not self._over.wait(0.1):
            values = {f"m{number}": float(step) for number in range(10)}
            self._teller.tell(0, *[(step + n, values) for n in range(20)])
            step += 20


def stalled(server: Server, path: str, *messages: dict[str, Any]) -> socket.socket:
    """Open a WebSocket, say what it follows, and read no more than that it is open."""
    host, _, port = server.url.rpartition("/")[2].partition(":")
    channel = socket.socket()
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    channel.settimeout(PATIENCE)
    channel.connect((host, int(port)))
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}:{port}",
        f"Authorization: Bearer {server.plane.token()}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
    ]
    channel.sendall("\r\n".join([*lines, "", ""]).encode())
    assert channel.recv(12) == b"HTTP/1.1 101"
    for message in messages:
        text = json.dumps(message).encode()
        assert len(text) < 126
        channel.sendall(bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)
    return channel


def resident(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


class Others:
    """Another client, which asks for something of the database again and again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits: list[float] = []

    def _run(self) -> None:
        with self._server.client() as client:
            while not self._over.wait(0.02):
                began = time.monotonic()
                assert client.get("/api/jobs/job-1").status_code == 200
                self.waits.append(time.monotonic() - began)

    def __enter__(self) -> "Others":
        self._thread.start()
        until(lambda: len(self.waits) > 20, PATIENCE)
        self.waits.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)


SUBS = [{"op": "sub", "id": topic, "topic": topic, "job": "job-1"} for topic in ("logs", "job")]


def try_stalled(server: Server, count: int) -> dict[str, Any]:
    """Open stalled WebSockets, one after the other; return what it took."""
    before, opened = resident(server), []
    with contextlib.ExitStack() as stack, Others(server) as others:
        began = time.monotonic()
        for number in range(count):
            at = time.monotonic()
            if number % 4:
                channel = stalled(server, "/api/jobs/job-1/stream")
            else:
                channel = stalled(server, "/api/stream", *SUBS)
            stack.enter_context(channel)
            opened.append(time.monotonic() - at)
        seconds = time.monotonic() - began
        sizes = [resident(server)]
        for _ in range(10):
            seen = len(others.waits)
            until(lambda seen=seen: len(others.waits) > seen + 10, PATIENCE)
            sizes.append(resident(server))
    return {
        "seconds": round(seconds, 2),
        "slowest_ms": round(max(opened) * 1000, 1),
        "grown_mib": round((max(sizes) - before) / MIB, 1),
        "others_median_ms": round(sorted(others.waits)[len(others.waits) // 2] * 1000, 1),
        "others_slowest_ms": round(max(others.waits) * 1000, 1),
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "plane") as plane:
        yield plane.start_server()


def test_stalled_websockets_of_a_busy_job_open_at_once_and_slow_nobody(server: Server) -> None:
    with Busy(server.plane, ranks=64, lines=50):
        found = try_stalled(server, 40)

    assert found["seconds"] < 20, found  # in order of milliseconds each
    assert found["grown_mib"] < GROWN, found
    assert found["others_slowest_ms"] < 5000, found


@pytest.mark.soak
def test_a_hundred_stalled_websockets_open_within_five_seconds(server: Server) -> None:
    with Busy(server.plane, ranks=64, lines=50):
        samples = [try_stalled(server, 100) for _ in range(5)]

    best = min(sample["seconds"] for sample in samples)
    facts = {"websockets": 100, "seconds": best, "most_grown_mib": GROWN}
    evidence.write("adversary-websockets", samples, **facts)
    assert best < 5
    assert max(sample["grown_mib"] for sample in samples) < GROWN
