"""Whatever bytes come to the HTTP server: it refuses them in time, stays small, and serves on."""

import base64
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from websockets.sync.client import connect

from ..harness.server_plane import Ranks, Server, running
from . import fuzzing
from .fuzzing import PATIENCE, Dice, Fuzz, Watched

pytestmark = pytest.mark.process

_SILENCE = 10.0  # seconds in which the server closes a connection whose client has said all


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server with a weaver and a job of two ranks behind it."""
    with running(tmp_path_factory.mktemp("fuzz")) as plane:
        server = plane.start_server()
        with Ranks(plane, "job-1"):
            yield server  # "job-2" is known to nobody: what is asked of it changes nothing


@pytest.fixture
def fuzz(server: Server) -> Callable[[str, float], Fuzz]:
    def begin(target: str, seconds: float) -> Fuzz:
        plane = server.plane
        watched = [Watched("server", server.process.pid), Watched("weaver", plane.weaver.pid)]
        return Fuzz(target, seconds, watched, [server.process.log, plane.weaver.log])

    return begin


def answers(server: Server) -> None:
    """Check that a normal client sees its job, and that a stranger does not."""
    with server.client() as client:
        found = client.get("/api/jobs/job-1", timeout=PATIENCE)
        assert (found.status_code, found.json().get("id")) == (200, "job-1"), found.text
        assert client.get("/healthz", timeout=PATIENCE).status_code == 200
    with server.client("") as client:
        assert client.get("/api/jobs/job-1", timeout=PATIENCE).status_code == 401


def call(server: Server, data: bytes) -> bytes:
    """Send bytes, say that there are no more, and return all that comes back."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), _SILENCE) as channel:
        return fuzzing.exchange(channel, data)


def statuses(heard: bytes) -> list[int]:
    """Return the statuses of the answers in what came back."""
    parts = heard.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts if part[:3].isdigit()]


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body


class Routes:
    """All routes that the server itself names, with parameters and bodies that are almost right."""

    def __init__(self, server: Server) -> None:
        with server.client() as client:
            whole = client.get("/openapi.json").json()
        self._known = whole.get("components", {}).get("schemas", {})
        self._token = server.plane.token()
        self._host = urlsplit(server.url).netloc
        self._routes = [
            (path, method.upper(), facts)
            for path, each in whole["paths"].items()
            for method, facts in each.items()
            if path != "/api/logout"  # the token is needed for the next request
        ]
        assert len(self._routes) > 40

    def headers(self, dice: Dice) -> dict[str, str]:
        told = {"Host": self._host, "Connection": "close"}
        if dice.random() < 0.8:
            told["Authorization"] = f"Bearer {self._token}"
        return told

    def request(self, dice: Dice) -> bytes:
        """Return a request to some route, with hostile parameters."""
        path, method, facts = dice.choice(self._routes)
        query = []
        for one in facts.get("parameters", ()):
            known = "job-1" if method == "GET" else "job-2"
            value = dice.word() if dice.random() < 0.5 else known
            text = quote(value, safe="", errors="replace") if dice.random() < 0.8 else value
            if one["in"] == "path":
                path = path.replace(f"{{{one['name']}}}", text)
            elif dice.random() < 0.6:
                value = str(dice.choice(fuzzing.VALUES))
                query.append(f"{one['name']}={quote(value, errors='replace')}")
        headers, body = self.headers(dice), b""
        if "requestBody" in facts:
            kind, told = dice.choice(list(facts["requestBody"]["content"].items()))
            body = dice.json(fuzzing.sample_of(told.get("schema", {}), self._known))
            headers |= {"Content-Type": kind, "Content-Length": str(len(body))}
        line = f"{path}?{'&'.join(query)}" if query else path
        return request(method, "".join(c for c in line if c > " "), headers, body)


def smuggled(routes: Routes, dice: Dice) -> bytes:
    """Return two requests in one, or a body whose length is told twice or wrongly."""
    headers = routes.headers(dice) | {"Content-Type": "application/json"}
    inner = request("GET", "/api/jobs", routes.headers(dice))
    tricks: list[tuple[dict[str, str], bytes]] = [
        ({"Content-Length": "4", "Transfer-Encoding": "chunked"}, b"0\r\n\r\n" + inner),
        ({"Transfer-Encoding": "chunked, identity"}, b"2\r\n{}\r\n0\r\n\r\n"),
        ({"Transfer-Encoding": "xchunked"}, b"0\r\n\r\n" + inner),
        ({"Transfer-Encoding": "chunked"}, b"fffffffffffffffff\r\n{}"),
        ({"Transfer-Encoding": "chunked"}, b"-1\r\n{}\r\n0\r\n\r\n"),
        ({"Transfer-Encoding": "chunked"}, b"2;" + b"x" * 5000 + b"\r\n{}\r\n0\r\n\r\n"),
        ({"Transfer-Encoding": "chunked"}, b"2\r\n{}\r\n0\r\nHost: evil\r\n\r\n" + inner),
        ({"Transfer-Encoding": "chunked"}, b"zz\r\n{}\r\n"),
        ({"Content-Length": "-1"}, inner),
        ({"Content-Length": "99999999999999999999"}, b"{}"),
        ({"Content-Length": "2\r\nContent-Length: 90"}, b"{}" + inner),
        ({"Content-Length": "+2"}, b"{}" + inner),
        ({"Host": "evil.example"}, b""),
        ({"X\0Y": "1"}, b""),
        ({"X-Long": "v\r\n folded"}, b""),
        ({"Expect": "100-continue", "Content-Length": "2"}, b"{}"),
        ({"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings"}, b""),
    ]
    more, body = dice.choice(tricks)
    return request(dice.choice(("POST", "GET", "PUT")), "/api/jobs", headers | more, body)


@fuzzing.short_and_long
def test_http_requests_of_any_bytes_cause_no_failure_of_the_server(
    server: Server, fuzz: Callable[[str, float], Fuzz], seconds: float
) -> None:
    routes = Routes(server)

    def attempt(dice: Dice) -> None:
        match dice.randrange(6):
            case 0:
                data = dice.garbage()
            case 1:
                data = smuggled(routes, dice)
            case 2:
                data = dice.mutated([routes.request(dice), smuggled(routes, dice)])
            case _:
                data = routes.request(dice)
        found = statuses(call(server, data))
        assert all(status < 500 for status in found), (found, data[:2000])

    fuzz("http", seconds).run(attempt, lambda: answers(server))


def frame(kind: int, payload: bytes, mask: bytes | None, length: int | None = None) -> bytes:
    """Return a frame of a client; the length may be a lie."""
    size = len(payload) if length is None else length
    flag = 0x80 if mask is not None else 0
    if size < 126:
        head = struct.pack("!BB", kind, flag | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", kind, flag | 126, size)
    else:
        head = struct.pack("!BBQ", kind, flag | 127, size & (2**64 - 1))
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


SAID: tuple[dict[str, Any], ...] = (
    {"op": "sub", "id": "a", "topic": "series", "job": "job-1", "buckets": 100},
    {"op": "sub", "id": "b", "topic": "logs", "job": "job-1", "after": "1.2"},
    {"op": "sub", "id": "c", "topic": "jobs"},
    {"op": "sub", "id": "d", "topic": "job", "job": "job-1"},
    {"op": "sub", "id": "e", "topic": "cluster"},
    {"op": "unsub", "id": "a"},
)


def said(dice: Dice) -> bytes:
    """Return some frames: messages that are almost right, frames that are none, or any bytes."""
    mask = dice.randbytes(4)
    text = dice.json(dice.choice(SAID))
    match dice.randrange(9):
        case 0:
            return dice.garbage()
        case 1:
            return frame(0x81, text, None)  # a client's must be masked
        case 2:
            return frame(0x81, text, mask, dice.choice((0, 126, 2**31, 2**63, 2**64 - 1)))
        case 3:
            return frame(dice.randrange(256), text[:200], mask)
        case 4:
            return frame(0x89, dice.garbage(), mask)
        case 5:
            return frame(0x88, struct.pack("!H", dice.randrange(1 << 16)) + dice.garbage(100), mask)
        case 6:
            return b"".join(frame(kind, text[:100], mask) for kind in (0x01, 0x00, 0x01, 0x80))
        case 7:
            return frame(0x82, dice.garbage(), mask)
        case _:
            whole = json.dumps(dice.choice(SAID)).encode()
            return frame(0x81, text, mask) + frame(0x81, whole, mask)


def talk(server: Server, path: str, said: bytes, token: str) -> bytes:
    """Open a WebSocket by hand, say something and hang up; return what came back."""
    where = urlsplit(server.url)
    key = base64.b64encode(os.urandom(16)).decode()
    headers = {"Host": where.netloc, "Upgrade": "websocket", "Connection": "Upgrade"}
    headers |= {"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    with socket.create_connection((where.hostname, where.port), _SILENCE) as channel:
        channel.sendall(request("GET", path, headers))
        return channel.recv(1 << 16) + fuzzing.exchange(channel, said)


def follows(server: Server) -> None:
    """Check that a page which behaves is told what it follows."""
    headers = {"Authorization": f"Bearer {server.plane.token()}"}
    url = server.url.replace("http", "ws", 1) + "/api/stream"
    with connect(url, additional_headers=headers, open_timeout=PATIENCE) as page:
        assert json.loads(page.recv(PATIENCE))["kind"] == "hello"
        page.send(json.dumps({"op": "sub", "id": "x", "topic": "job", "job": "job-1"}))
        while json.loads(page.recv(PATIENCE)).get("id") != "x":
            pass


def test_an_upgrade_that_cannot_be_read_is_refused_and_closed(server: Server) -> None:
    heard = talk(server, f"/api/stream?types={'a' * 20_000}", b"", server.plane.token())

    assert all(status in (400, 414, 431) for status in statuses(heard)), heard[:200]


def test_a_message_that_is_refused_in_a_long_text_leaves_no_traceback(server: Server) -> None:
    before = server.process.log.stat().st_size
    wrong = json.dumps({"op": "sub", "id": "a", "é" * 200: 1}, ensure_ascii=False).encode()

    heard = talk(server, "/api/stream", frame(0x81, wrong, b"mask"), server.plane.token())
    heard += talk(server, "/api/stream", frame(0x81, b"\xff\xfe", b"mask"), server.plane.token())

    assert struct.pack("!H", 1003) in heard
    assert struct.pack("!H", 1007) in heard
    assert b"Traceback" not in server.process.log.read_bytes()[before:]


@fuzzing.short_and_long
def test_websocket_frames_and_messages_of_any_bytes_cause_no_failure_of_the_server(
    server: Server, fuzz: Callable[[str, float], Fuzz], seconds: float
) -> None:
    token = server.plane.token()
    paths = ("/api/stream", "/api/jobs/job-1/stream", "/api/stream?jobs=job-1&after=job-1:x")

    def attempt(dice: Dice) -> None:
        path = dice.choice((*paths, f"/api/stream?types={quote(dice.word(), errors='replace')}"))
        data = b"".join(said(dice) for _ in range(dice.randint(1, 6)))
        heard = talk(server, path, data, token if dice.random() < 0.9 else "")
        assert all(status < 500 for status in statuses(heard)), (path, data[:2000])

    fuzz("websocket", seconds).run(attempt, lambda: follows(server))
