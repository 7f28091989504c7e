"""An HTTP proxy on loopback that lets the k-th request go wrong, before a real server behind it."""

import contextlib
import http.client
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("kill", "killed", "503", "503s", "cut", "lost", "twice", "torn")
MANY = 3  # answers of 503 in a row: one request and all its retries by the client


class Plan:
    """Which request goes wrong, and how; who dies of it; how many there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.watch: Callable[[], str] = str  # what is going on when a request goes wrong
        self.set(0, "none")

    def set(self, at: int, fault: str) -> None:
        """Count from the start again."""
        with self._lock:
            self.at, self.fault, self.victim = at, fault, 0
            self.count = 0
            self.methods: list[str] = []
            self.seen: str | None = None

    def next(self, method: str) -> str:
        """Return the fault of this request, or nothing."""
        with self._lock:
            self.count += 1
            self.methods.append(method)
            last = self.at + (MANY - 1 if self.fault == "503s" else 0)
            if not self.at <= self.count <= last:
                return ""
            if self.seen is None:
                self.seen = self.watch()
            return self.fault


class Proxy:
    """The proxy: its endpoint, and its plan."""

    def __init__(self, behind: str) -> None:
        self.plan = Plan()
        target = urlsplit(behind)
        handler = type("Handler", (_Handler,), {"plan": self.plan, "target": target.netloc})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def proxying(behind: str) -> Iterator[Proxy]:
    """Run a proxy before a server."""
    proxy = Proxy(behind)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one segment an answer
    plan: Plan
    target: str

    def _serve(self) -> None:
        fault = self.plan.next(self.command)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault in ("503", "503s"):
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
        elif fault == "cut":
            self._hang_up()
        elif fault == "torn" and body:
            self._forward_half(body)
            self._hang_up()
        elif fault == "kill":
            os.kill(self.plan.victim, signal.SIGKILL)
            self._hang_up()
        elif fault in ("lost", "killed"):
            self._forward(body)
            if fault == "killed":
                os.kill(self.plan.victim, signal.SIGKILL)
            self._hang_up()
        else:
            if fault == "twice":
                self._forward(body)
            self._answer(*self._forward(body))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.target, timeout=30)
        try:
            self._send(connection, body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _forward_half(self, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.target, timeout=30)
        with contextlib.suppress(OSError):
            self._send(connection, body[: len(body) // 2])
            connection.sock.shutdown(socket.SHUT_WR)
            connection.getresponse().read()
        connection.close()

    def _send(self, connection: http.client.HTTPConnection, body: bytes) -> None:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)  # the host too: it is part of the signature
        connection.endheaders(body or None)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length")
            whole = length if self.command == "HEAD" and length else str(len(body))
            self.send_header("Content-Length", whole)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
