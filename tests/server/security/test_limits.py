"""Too much, too deep, or half of it: refused in words, and the server serves the next one."""

import socket
import struct
from urllib.parse import urlsplit

import httpx
import pytest

from ...harness.server_plane import Server

pytestmark = pytest.mark.process
MIB = 1 << 20


def test_a_body_that_announces_too_much_is_refused_before_it_is_sent(server: Server) -> None:
    host = urlsplit(server.url).netloc
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: {host}\r\nContent-Length: {MIB * 1000}\r\n"
        f"Authorization: Bearer {server.plane.token()}\r\nContent-Type: application/json\r\n\r\n"
    )

    with socket.create_connection(host.split(":")) as channel:
        channel.settimeout(10)
        channel.sendall(head.encode())
        said = b""
        while b"too_large" not in said and (more := channel.recv(1 << 16)):
            said += more

    assert said.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "too_large"' in said


def test_a_body_that_does_not_say_its_length_is_counted(admin: httpx.Client) -> None:
    answer = admin.post("/api/jobs", content=(b" " * MIB for _ in range(2)))

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("path", ["/api/jobs", "/api/experiments/compare", "/api/devices/alerts"])
def test_deep_json_is_refused_wherever_json_is_read(admin: httpx.Client, path: str) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000

    answer = admin.post(path, content=deep, headers={"Content-Type": "application/json"})

    assert answer.status_code in (400, 422)
    assert answer.json()["remedy"]


def test_a_client_that_dies_in_the_middle_of_a_body_leaves_nothing_behind(
    server: Server, admin: httpx.Client
) -> None:
    host = urlsplit(server.url).netloc
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n"
        f"Authorization: Bearer {server.plane.token()}\r\nContent-Type: application/json\r\n\r\n"
        '{"name": "half", "script": "'
    )

    for _ in range(20):
        channel = socket.create_connection(host.split(":"))
        channel.sendall(head.encode())
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        channel.close()  # with a reset, as a process that is killed leaves

    assert admin.get("/api/jobs").json()["items"] == []
    assert "Traceback" not in server.process.log.read_text()
