"""The server as a process: which port it takes, what it refuses, what it writes to its log."""

import contextlib
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from torchloom.plane.certificates import certificate
from torchloom.server.access_log import JsonLogFormatter
from torchloom.server.main import PORT, ServerOptions, listen, options_of

from ..harness.home import TIMEOUT, until
from ..harness.server_plane import Plane, Server

pytestmark = pytest.mark.process


def options(tmp_path: Path, *words: str) -> ServerOptions:
    given = ["--home", str(tmp_path), "--runtime", str(tmp_path), *words]
    return options_of(given, {})


def test_a_server_comes_back_at_the_port_where_the_last_one_was(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

    with listen(options(tmp_path), {"url": f"http://127.0.0.1:{port}"}) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)


def test_a_port_that_somebody_has_is_left_to_them(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        last = {"url": f"http://127.0.0.1:{port}"}
        with listen(options(tmp_path), last) as listener:
            assert listener.getsockname()[1] not in (0, port)


def test_of_two_that_begin_at_once_each_has_a_port_of_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        last = {"url": f"http://127.0.0.1:{other.getsockname()[1]}"}

    with listen(options(tmp_path), last) as one, listen(options(tmp_path), last) as two:
        assert one.getsockname() != two.getsockname()


@pytest.mark.parametrize(
    "last", [{}, {"url": 7}, {"url": "http://x:99999999"}, {"url": "http://x"}]
)
def test_a_card_that_is_none_is_no_help_and_no_harm(
    tmp_path: Path, last: dict[str, object]
) -> None:
    with listen(options(tmp_path), last) as listener:
        assert listener.getsockname()[1] > 0
    assert PORT == 8787


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--host", "0.0.0.0"], 2, "the server does not listen on all addresses"),
        (["--host", "::"], 2, "the server does not listen on all addresses"),
        (["--tls-cert", "x"], 2, "--tls-cert and --tls-key go together"),
        (["--host", "192.0.2.1", "--port", "0"], 1, "cannot listen on port 0 of 192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    tmp_path: Path, words: list[str], code: int, why: str
) -> None:
    command = [sys.executable, "-m", "torchloom.server", "--home", str(tmp_path), *words]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT)

    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(f"server: {why}")


def test_a_line_of_json_a_request_without_secrets(
    plane: Plane, server: Server, admin: httpx.Client
) -> None:
    admin.get("/api/jobs/top-secret", params={"token": "hush"})
    with server.client("loom_wrong") as stranger:
        stranger.get("/api/jobs")

    text = server.process.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    said = [line for line in lines if line["logger"] == "torchloom.server.access_log"]
    assert set(said[0]) == {"time", "level", "logger", "method", "path", "status", "ms", "user"}
    assert [(one["method"], one["path"], one["status"], one["user"]) for one in said] == [
        ("GET", "/api/jobs/{id}", 404, "admin"),
        ("GET", "-", 401, None),
    ]
    for secret in ("top-secret", "hush", "loom_", plane.token()):
        assert secret not in text


def test_the_query_string_of_a_websocket_is_in_no_log(plane: Plane, server: Server) -> None:
    address = server.url.replace("http", "ws", 1) + "/api/stream"
    admin = {"Authorization": f"Bearer {plane.token()}"}

    for path, headers in (
        ("?token=hush", admin),  # accepted
        ("?token=hush", {}),  # refused
        ("?jobs=hush", admin),  # answered with a problem
        ("?jobs=a&types=hush", admin),
    ):
        with (
            contextlib.suppress(InvalidStatus),
            connect(address + path, additional_headers=headers),
        ):
            pass

    def ws_lines() -> list[dict[str, Any]]:
        lines = map(json.loads, server.process.log.read_text().splitlines())
        return [line for line in lines if line.get("method") == "WS"]

    until(lambda: len(ws_lines()) == 4)
    assert [line["status"] for line in ws_lines()] == [101, 401, 404, 422]
    assert "hush" not in server.process.log.read_text()


def test_a_query_string_is_left_out_of_whatever_is_logged() -> None:
    try:
        raise ValueError("cannot read GET http://h:1/api/jobs?token=hush&b=1 HTTP/1.1")
    except ValueError:
        facts = ("x", logging.ERROR, "p", 1, 'WS "/api/stream?token=hush" [%s]', ("accepted",))
        record = logging.LogRecord(*facts, sys.exc_info())

    line = JsonLogFormatter().format(record)

    assert "hush" not in line
    assert json.loads(line)["message"] == 'WS "/api/stream?..." [accepted]'
    assert "GET http://h:1/api/jobs?... HTTP/1.1" in json.loads(line)["traceback"]


def test_with_a_certificate_it_speaks_tls_at_its_own_address_alone(
    plane: Plane, server: Server, tmp_path: Path
) -> None:
    made = certificate(tmp_path, "127.0.0.2")
    words = ["--host", "127.0.0.2", "--tls-cert", str(made.chain), "--tls-key", str(made.key)]
    other = plane.start_server(*words, "--tls-ca", str(made.authority))
    trust = ssl.create_default_context(cafile=made.authority)

    with other.client(verify=trust) as client, other.client() as stranger:
        answer = client.get("/api/jobs")
        refused = client.get("/api/jobs", headers={"Host": "127.0.0.3"})
        with pytest.raises(httpx.ConnectError, match="certificate"):
            stranger.get("/healthz")

    assert other.url.startswith("https://127.0.0.2:")
    assert (answer.status_code, refused.status_code) == (200, 421)
    assert server.url.startswith("http://127.0.0.1:")
