"""Planes with stand-ins for weaver and agent, real NATS servers, and nothing left behind."""

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as client
from torchloom.plane import nats_server

from ..harness.home import home, until

__all__ = ["home"]

HERE = Path(__file__).parent
NOBODY = 65534


def alive(pid: int) -> bool:
    """Tell whether a process runs, by the kernel's word; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Planes:
    """Starts planes as processes and ends what is left of them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        """Start a plane with stand-ins; its first line says how that went."""
        process = subprocess.Popen(
            [sys.executable, str(HERE / "be_a_plane.py"), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
        )
        self._started.append(process)
        return process

    def up(self, *words: str, **env: str) -> dict[str, Any]:
        """Start a plane and return how it is as soon as it is up."""
        assert self.said(self.start(*words, **env)) == {"ok": "up"}
        found = client.find()
        assert found is not None
        return found

    def said(self, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
        assert process.stdout is not None
        said: dict[str, Any] = json.loads(process.stdout.readline())
        return said

    def close(self) -> None:
        with contextlib.suppress(Exception):  # a plane that a test broke cannot be asked
            client.leave(10)
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def planes(home: Path) -> Iterator[Planes]:
    """A way to start planes of the test's own home."""
    starter = Planes()
    yield starter
    starter.close()
    left = of_home(home)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == {}, "the test's plane left processes behind"


def of_home(home: Path) -> dict[int, str]:
    """Return every living process of the plane of a home, by what /proc shows."""
    wanted = f"LOOM_HOME={home}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone by now
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_text()
    return found


def as_nobody(act: Callable[[], Any]) -> Any:
    """Return what an act gives when another user does it, in a process of its own."""
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write_end, json.dumps(act()).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end) as report:
        told = report.readline()
    os.waitpid(child, 0)
    return json.loads(told)


class Server:
    """A real NATS server of somebody else."""

    def __init__(self, *words: str) -> None:
        self.port, self._watched = nats_server.free_port("127.0.0.1"), _port()
        self.url = f"nats://127.0.0.1:{self.port}"
        places = ["-a", "127.0.0.1", "-p", str(self.port), "-m", str(self._watched)]
        command = [nats_server.program(), *places, *words]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={})
        until(self.listens)

    def listens(self) -> bool:
        with contextlib.suppress(OSError):
            for port in (self._watched, self.port):
                socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    def counters(self) -> Mapping[str, int]:
        """Return what the server itself counted: messages and subscriptions of clients."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._watched}/varz", timeout=5) as page:
            shown = json.load(page)
        return {name: shown[name] for name in ("in_msgs", "in_bytes", "subscriptions")}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _port() -> int:
    return nats_server.free_port("127.0.0.1")


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    """Start a NATS server with these words of a command line."""
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> Server:
            one = Server(*words)
            stack.callback(one.close)
            return one

        yield start


@pytest.fixture(autouse=True)
def _collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let go of the sockets that nats-py leaves to the collector when it was not let in.

    To look at all objects takes a second: tests without a process have no such sockets.
    """
    yield
    if request.node.get_closest_marker("process") is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
