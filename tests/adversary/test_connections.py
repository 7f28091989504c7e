"""Strangers at the HTTP port: what they send is counted and timed before it is kept."""

import asyncio
import base64
import contextlib
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from torchloom.plane.certificates import certificate
from torchloom.plane.nats_server import Certificate
from torchloom.server.security.limits import (
    ConnectionLimits,
    Connections,
    TurnBudget,
    Visit,
    counted_address,
)
from torchloom.server.security.protocol import OpenTransport

from ..harness import evidence
from ..harness.home import until
from .limited import OTHER, PATIENCE, Lag, Limited, read_all, request, serving

pytestmark = pytest.mark.process
MIB = 1 << 20
ADDRESSES = 16  # from which a swarm comes
STALL = 1.0  # seconds; a server without limits stalls for three seconds to minutes
TURN = 0.04  # seconds of the processor's time that a turn of the event loop may take
PROMISED = 50.0  # milliseconds for which the event loop may not turn
FIELDS = {
    "loop_ms": "wall time: the longest for which the event loop did not turn",
    "queue_ms": "the part of it in which the kernel gave the core to other threads",
    "cpu_ms": "processor's time: the most that the loop's thread ran within 2 ms and a turn",
    "other_client_ms": "wall time: the longest in which a client of another address was answered",
    "load": "the machine's load average when the attempt began",
}
HALF = b"POST /body HTTP/1.1\r\nHost: x\r\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the begin of a client's first message
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
)


Attack = Callable[[], Lag]


@pytest.fixture(scope="module")
def server() -> Iterator[Limited]:
    """Give a server with the limits that it has in use."""
    with serving() as started:
        yield started


@pytest.fixture(scope="module")
def hasty() -> Iterator[Limited]:
    """Give a server that waits for nobody, and keeps few connections."""
    seconds = {"head_seconds": 0.6, "body_seconds": 0.6, "idle_seconds": 0.6, "stall_seconds": 0.6}
    with serving(**seconds, waiting=20, of_peer=60, total=60) as started:
        yield started


def send(channel: socket.socket, *parts: bytes) -> bytes:
    """Send until the server does not take more; return what it said."""
    with contextlib.suppress(OSError):
        for part in parts:
            channel.sendall(part)
    return read_all(channel)


def upgraded(limited: Limited) -> socket.socket:
    """Return a WebSocket that was accepted."""
    channel = limited.connect()
    channel.sendall(request("/", *UPGRADE))
    assert channel.recv(4096).startswith(b"HTTP/1.1 101 ")
    return channel


def frame(opcode: int, content: bytes = b"", fin: bool = True) -> bytes:
    """Return a frame of a client, with a mask of zeros."""
    return bytes((0x80 * fin | opcode, 0x80 | len(content), 0, 0, 0, 0)) + content


def flood(limited: Limited, begin: bytes, count: int = 1200) -> Lag:
    """Open connections at once that send the same and wait; return what came of it."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            channel = stack.enter_context(limited.connect())
            with contextlib.suppress(ConnectionError):
                channel.sendall(begin)
        return limited.lag()


def complete(limited: Limited, begin: bytes, rest: bytes, count: int = 240) -> Lag:
    """Send the rest of some requests or handshakes at once; return what came of it."""
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(limited.connect()) for _ in range(count)]
        for channel in channels:
            channel.sendall(begin)
        limited.ask(source=OTHER)  # behind all of them
        limited.lag()
        for channel in channels:
            channel.sendall(rest)
        for channel in channels:
            assert channel.recv(1)
        return limited.lag()


def swarm(
    limited: Limited, begin: bytes, rest: bytes, count: int = 4000, is_held: bool = False
) -> Lag:
    """Do the same from 16 addresses: the server keeps some of these clients, and ends the others.

    A server that is held while the rest is sent has all of it at one moment; only the processor's
    time tells something then.
    """
    with contextlib.ExitStack() as stack:
        channels = []
        for number in range(count):
            channel = limited.connect(f"127.0.0.{10 + number % ADDRESSES}")
            channels.append(stack.enter_context(channel))
            with contextlib.suppress(ConnectionError):
                channel.sendall(begin)
        limited.ask(source=OTHER)  # behind all of them
        limited.lag()
        with limited.held() if is_held else contextlib.nullcontext():
            for channel in channels:
                with contextlib.suppress(ConnectionError):
                    channel.sendall(rest)
        limited.ask(source=OTHER)
        return limited.lag()


def finish(limited: Limited, count: int, is_held: bool = False) -> Lag:
    """End TLS handshakes and send a request each, all at once, from 16 addresses."""
    with contextlib.ExitStack() as stack:
        ready = []
        for number in range(count):
            channel = limited.connect(f"127.0.0.{10 + number % ADDRESSES}")
            stack.enter_context(channel)
            ready.append((channel, shaken_hands(channel)))
        limited.lag()
        with limited.held() if is_held else contextlib.nullcontext():
            for channel, rest in ready:
                with contextlib.suppress(ConnectionError):  # those that had to make room
                    channel.sendall(rest)
        limited.ask(source=OTHER)
        return limited.lag()


def shaken_hands(channel: socket.socket) -> bytes:
    """Shake hands but for the last message; return that, with a request behind it."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting_none().wrap_bio(theirs, ours)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    channel.sendall(ours.read())
    theirs.write(channel.recv(1 << 16))
    client.do_handshake()
    client.write(request("/", "Connection: close"))
    return ours.read()


@cache
def trusting_none() -> ssl.SSLContext:
    """Return how a client speaks TLS that does not care whom it speaks to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def rsa_certificate(folder: Path, bits: int = 2048) -> Certificate:
    """Return a certificate of 127.0.0.1 with a key of RSA, as many authorities give."""
    key = rsa.generate_private_key(65537, bits)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, address = datetime.now(UTC), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    draft = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    draft = draft.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    draft = draft.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = Certificate(folder / "rsa.pem", folder / "rsa.key", folder / "rsa.pem")
    made.chain.write_bytes(draft.sign(key, SHA256()).public_bytes(Encoding.PEM))
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


class Normal:
    """A second client that asks all the time: how long was its longest wait."""

    def __init__(self, limited: Limited) -> None:
        self._limited, self.longest, self.answers = limited, 0.0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            assert self._limited.ask(source=OTHER).endswith(b"here")
            self.longest = max(self.longest, time.monotonic() - began)
            self.answers += 1

    def __enter__(self) -> "Normal":
        self._thread.start()
        until(lambda: self.answers, PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        assert self.longest < STALL


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", 431),
        (b"GET /", 414),
    ],
)
def test_a_head_without_end_is_refused_and_costs_nothing(
    server: Limited, head: bytes, status: int
) -> None:
    part = b"a" * MIB if not head.endswith(b"\r\n") else b"a: b\r\n" * (MIB // 6)
    server.lag()
    before = server.resident()

    with Normal(server), server.connect() as channel:
        said = send(channel, head, *[part] * 40)

    assert said.startswith(b"HTTP/1.1 %d " % status), said[:100]
    assert json.loads(said.rpartition(b"\r\n\r\n")[2])["remedy"]
    assert server.lag().wall < STALL
    assert server.resident() - before < 20 * MIB


def test_a_head_as_large_as_it_may_be_is_read(server: Limited) -> None:
    headers = [f"X-{number}: {'a' * 200}" for number in range(90)]

    with server.connect() as channel:
        said = send(channel, request(f"/?cursor={'q' * 64_000}", *headers, "Connection: close"))

    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "headers",
    [
        [f"X-{number}: a" for number in range(101)],
        [f"X: {'a' * 9000}"],
        [f"X-{number}: {'a' * 4000}" for number in range(30)],
    ],
)
def test_an_upgrade_has_the_limits_of_a_request(server: Limited, headers: list[str]) -> None:
    with server.connect() as channel:
        said = send(channel, request("/", *UPGRADE, *headers))

    assert said.startswith(b"HTTP/1.1 431 ")


def test_an_upgrade_with_a_long_url_is_refused(server: Limited) -> None:
    with server.connect() as channel:
        said = send(channel, request(f"/?after={'c' * 9000}", *UPGRADE))

    assert said.startswith(b"HTTP/1.1 414 ")


@pytest.mark.parametrize(
    ("start", "drip", "status"),
    [
        (b"", b"", b""),
        (b"GET / HTTP/1.1\r\nX: ", b"a", b"HTTP/1.1 408 "),
        (b"", b"\r\n", b"HTTP/1.1 408 "),
        (request("/"), b"\r\n", b"HTTP/1.1 200 "),
        (request("/body", "Content-Length: 9000", method="POST"), b"a", b"HTTP/1.1 408 "),
        (
            request("/body", "Transfer-Encoding: chunked", method="POST"),
            b"1\r\na\r\n",
            b"HTTP/1.1 408 ",
        ),
        (request("/", "Content-Length: 9000", method="POST"), b"a", b"HTTP/1.1 200 "),
    ],
)
def test_a_client_that_drips_is_ended(
    hasty: Limited, start: bytes, drip: bytes, status: bytes
) -> None:
    with hasty.connect() as channel, contextlib.suppress(ConnectionError):
        channel.sendall(start)
        channel.settimeout(0.05)
        said, ended = b"", time.monotonic() + PATIENCE
        while time.monotonic() < ended:
            with contextlib.suppress(TimeoutError):
                if not (more := channel.recv(4096)):
                    break
                said += more
            channel.sendall(drip)
        assert time.monotonic() < ended

    assert said.startswith(status)


def test_half_open_requests_make_room_for_others(hasty: Limited) -> None:
    with contextlib.ExitStack() as stack:
        websocket = stack.enter_context(upgraded(hasty))
        slow = stack.enter_context(hasty.connect())
        slow.sendall(request("/slow", "Connection: close"))
        for _ in range(200):
            channel = stack.enter_context(hasty.connect())
            with contextlib.suppress(ConnectionError):
                channel.sendall(b"GET / HTTP/1.1\r\n")
        answered = hasty.ask()
        until(lambda: hasty.sockets() < 40, PATIENCE)
        websocket.sendall(frame(1, b"still here"))

        assert answered.endswith(b"here")
        assert websocket.recv(100).endswith(b"still here")
        assert read_all(slow).endswith(b"here")


def test_twelve_hundred_half_open_requests_are_gone_in_the_end(hasty: Limited) -> None:
    before = hasty.resident()
    with contextlib.ExitStack() as stack:
        for _ in range(1200):
            channel = stack.enter_context(hasty.connect())
            with contextlib.suppress(ConnectionError):
                channel.sendall(b"POST /body HTTP/1.1\r\nHost: x\r\n")

        until(lambda: hasty.sockets() < 10, PATIENCE)

        assert hasty.ask().endswith(b"here")
        assert hasty.resident() - before < 20 * MIB


def test_floods_do_not_hold_up_the_event_loop(server: Limited) -> None:
    server.lag()

    turns = [flood(server, HALF).cpu for _ in range(8)]

    assert max(turns) < TURN, turns


def test_requests_of_many_addresses_do_not_hold_up_the_event_loop(server: Limited) -> None:
    whole = request("/", "Connection: close")

    assert swarm(server, whole[:9], whole[9:], is_held=True).cpu < TURN


def test_requests_that_are_complete_at_one_moment_do_not_begin_in_one_turn(
    server: Limited,
) -> None:
    lag = complete(server, request("/work")[:-2], b"\r\n", count=100)

    assert lag.cpu < 0.1  # of 0.2 s that they take


def attacks_on(plain: Limited, secured: Limited, rsa: Limited) -> dict[str, tuple[Limited, Attack]]:
    """Return what addresses may do to a server without TLS, or to one with it."""
    line, lines = b"a" * MIB, b"a: b\r\n" * (MIB // 6)
    head, hello = b"GET / HTTP/1.1\r\nHost: x\r\n", client_hello()

    def send_to(limited: Limited, *parts: bytes) -> Lag:
        with limited.open() as channel:
            send(channel, *parts)
        return limited.lag()

    def wait(limited: Limited) -> Lag:
        time.sleep(1.0)
        return limited.lag()

    return {
        "control: no attack": (plain, lambda: wait(plain)),
        "TLS: control: no attack": (secured, lambda: wait(secured)),
        "4,000 requests completed at once, 16 addresses": (
            plain,
            lambda: swarm(plain, head, b"\r\n"),
        ),
        "a header of 400 MiB": (plain, lambda: send_to(plain, head + b"X: ", *[line] * 400)),
        "headers of 400 MiB": (plain, lambda: send_to(plain, head, *[lines] * 400)),
        "a URL of 400 MiB": (plain, lambda: send_to(plain, b"GET /", *[line] * 400)),
        "1,200 half-open requests": (plain, lambda: flood(plain, HALF)),
        "240 requests completed at once": (plain, lambda: complete(plain, head, b"\r\n")),
        "TLS: a header of 400 MiB": (
            secured,
            lambda: send_to(secured, head + b"X: ", *[line] * 400),
        ),
        "TLS: 1,200 half-open handshakes": (secured, lambda: flood(secured, HELLO)),
        "TLS: 1,200 handshakes left half-way": (secured, lambda: flood(secured, hello)),
        "TLS: 240 handshakes completed at once": (
            secured,
            lambda: complete(secured, hello[:50], hello[50:]),
        ),
        "TLS: 4,000 handshakes completed at once, 16 addresses": (
            secured,
            lambda: swarm(secured, hello[:50], hello[50:]),
        ),
        "TLS: 2,000 handshakes ended with a request at once, 16 addresses": (
            secured,
            lambda: finish(secured, 2000),
        ),
        "TLS, RSA-2048: 240 handshakes completed at once": (
            rsa,
            lambda: complete(rsa, hello[:50], hello[50:]),
        ),
        "TLS, RSA-2048: 4,000 handshakes completed at once, 16 addresses": (
            rsa,
            lambda: swarm(rsa, hello[:50], hello[50:]),
        ),
    }


def client_hello() -> bytes:
    """Return the first message of a client that speaks TLS."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def try_attack(name: str, limited: Limited, attack: Attack) -> dict[str, Any]:
    """Return how long the loop did not turn, what others waited and how much memory it took."""
    before = limited.resident()
    limited.lag()
    with Normal(limited) as normal:
        lag = attack()
    found = {"loop_ms": lag.wall, "queue_ms": lag.queue, "cpu_ms": lag.cpu}
    found["other_client_ms"] = normal.longest
    shown = {key: round(value * 1000, 3) for key, value in found.items()}
    return {"attack": name, **shown, "grown_mib": (limited.resident() - before) / MIB}


@pytest.mark.soak
def test_how_long_a_stranger_holds_up_the_event_loop(server: Limited, tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = []
    own, other = certificate(tmp_path, "127.0.0.1"), rsa_certificate(tmp_path)
    with serving(own) as secured, serving(other) as rsa:
        attacks = attacks_on(server, secured, rsa)
        for attempt in (1, 2, 3):  # other processes of the machine may have the cores
            load = round(os.getloadavg()[0], 2)
            found = [try_attack(name, *attacks[name]) for _ in range(6) for name in attacks]
            samples += [{"attempt": attempt, "load": load, **sample} for sample in found]
            longest = max(sample["loop_ms"] for sample in found)
            if longest <= PROMISED:
                break

    evidence.write("adversary-strangers", samples, promised_ms=PROMISED, fields=FIELDS)

    assert longest <= PROMISED
    assert max(sample["loop_ms"] - sample["queue_ms"] for sample in samples) <= PROMISED
    assert max(sample["cpu_ms"] for sample in samples) <= PROMISED


def test_websockets_of_one_address_leave_room_for_others() -> None:
    with serving(waiting=5, of_peer=10, total=20) as limited, contextlib.ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(upgraded(limited))

        assert limited.ask().endswith(b"here")

        stack.enter_context(upgraded(limited))
        with limited.connect() as channel:
            assert send(channel, request()) == b""


@pytest.mark.parametrize(
    "part",
    [
        b"1;" + b"e" * 60_000 + b"\r\na\r\n",  # an extension of a chunk
        b"1\r\na\r\n" * 10_000,
        b"0\r\n" + b"X: a\r\n" * 10_000,  # trailers
        b"0\r\nX: " + b"a" * 60_000,
    ],
)
def test_what_is_around_chunks_is_limited(server: Limited, part: bytes) -> None:
    head = request("/body", "Transfer-Encoding: chunked", method="POST")
    server.lag()

    with Normal(server), server.connect() as channel:
        said = send(channel, head, *[part] * 100)

    assert said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    assert server.lag().wall < STALL


def test_a_trailer_does_not_become_a_header(server: Limited) -> None:
    head = request("/headers", "Transfer-Encoding: chunked", "Connection: close", method="POST")

    with server.connect() as channel:
        said = send(channel, head + b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n")

    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"authorization" not in said


def test_a_body_that_continues_after_its_response_is_ended(server: Limited) -> None:
    head = request("/", f"Content-Length: {10_000 * MIB}", method="POST")

    with Normal(server), server.connect() as channel:
        said = send(channel, head, *[b"a" * MIB] * 100)

    assert said.startswith(b"HTTP/1.1 200 ")


def test_some_requests_ahead_are_answered_in_order_and_many_are_refused(server: Limited) -> None:
    paths = ["/", "/body", "/", "/headers", "/"]
    server.lag()
    with server.connect() as channel:
        said = send(channel, *map(request, paths), request("/", "Connection: close"))

    assert said.count(b"HTTP/1.1 200 ") == len(paths) + 1

    before = server.resident()
    with Normal(server), server.connect() as channel:
        said = send(channel, *[request() * 5000] * 100)

    assert said.count(b"HTTP/1.1") <= ConnectionLimits().pipelined + 1
    assert server.lag().wall < STALL
    assert server.resident() - before < 20 * MIB


def test_a_client_that_does_not_read_its_response_is_ended(hasty: Limited) -> None:
    before = hasty.resident()
    with hasty.connect() as channel:
        channel.sendall(request("/large"))

        until(lambda: hasty.resident() > before + 30 * MIB, PATIENCE)
        until(lambda: hasty.resident() < before + 30 * MIB, PATIENCE)


@pytest.mark.parametrize(
    "part",
    [frame(9, b"p" * 100) * 2000, frame(1, b"m") * 20_000, frame(0, fin=False) * 20_000],
    ids=["pings", "messages", "fragments"],
)
def test_a_websocket_that_sends_and_does_not_read_stalls_nobody(
    server: Limited, part: bytes
) -> None:
    server.lag()
    before = server.resident()
    with Normal(server), upgraded(server) as channel:
        channel.settimeout(0.5)
        with contextlib.suppress(OSError):  # it is dropped, or nothing more is taken of it
            channel.sendall(frame(1, b"begin", fin=False) if b"\x00\x80" in part[:2] else b"")
            for _ in range(400):
                channel.sendall(part)

    assert server.lag().wall < STALL
    assert server.resident() - before < 20 * MIB


def test_a_websocket_that_sends_before_it_is_let_in_is_ended(server: Limited) -> None:
    sockets = server.sockets()
    with server.connect() as channel:
        channel.sendall(request("/slow", *UPGRADE))
        until(lambda: server.sockets() > sockets, PATIENCE)

        assert send(channel, *[frame(9)] * 1000) == b""


def test_an_answer_to_a_client_that_has_hung_up_is_dropped() -> None:
    async def answer() -> str:
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        transport: Any = writer.transport
        theirs.close()
        transport.abort()  # as for a client that is evicted while its requests are served
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        OpenTransport(transport).write(b"answer")
        with pytest.raises(RuntimeError) as caught:
            transport.write(b"answer")
        return str(caught.value)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert "closed" in runner.run(answer())


def test_garbage_is_refused_and_the_next_one_is_served(server: Limited) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01" * 100,
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"PRI * HTTP/2",
    ):
        with server.connect() as channel:
            channel.sendall(garbage + b"\r\n\r\n")
            channel.shutdown(socket.SHUT_WR)
            assert read_all(channel).startswith(b"HTTP/1.1 400 ")

    assert server.ask().endswith(b"here")


class Line:
    """A transport as far as the table of connections needs one."""

    def __init__(self, address: str) -> None:
        self.address, self.aborted, self.unread = address, False, 0

    def get_extra_info(self, _: str) -> Any:
        return (self.address, 1)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True


def arrive(table: Connections, address: str) -> tuple[Visit, Line]:
    line: Any = Line(address)
    visit = Visit(table, line, line.abort)
    assert table.arrive(visit, 10.0)
    return visit, line


def test_the_connection_that_has_waited_longest_is_evicted() -> None:
    table = Connections(ConnectionLimits(waiting=2), lambda: 0.0)
    served, first, second = (arrive(table, "10.0.0.1") for _ in range(3))
    other = arrive(table, "10.0.0.2")
    assert served[1].aborted

    first[0].serve()
    third = arrive(table, "10.0.0.1")
    second[0].wait(10.0)
    arrive(table, "10.0.0.1")

    lines = [line for _, line in (first, second, third, other)]
    assert [line.aborted for line in lines] == [False, False, True, False]


def test_a_full_table_evicts_from_the_address_that_has_most() -> None:
    table = Connections(ConnectionLimits(waiting=9, total=4), lambda: 0.0)
    many = [arrive(table, "10.0.0.1") for _ in range(3)]
    one = arrive(table, "10.0.0.2")

    arrive(table, "10.0.0.3")

    assert [line.aborted for _, line in (*many, one)] == [True, False, False, False]


def test_too_many_that_wait_in_all_evict_from_the_address_that_has_most() -> None:
    table = Connections(ConnectionLimits(waiting=9, waiting_in_all=4), lambda: 0.0)
    one = arrive(table, "10.0.0.2")
    served = arrive(table, "10.0.0.1")
    served[0].serve()
    many = [arrive(table, "10.0.0.1") for _ in range(3)]

    arrive(table, "10.0.0.3")
    served[0].wait(10.0)

    lines = [line.aborted for _, line in (one, served, *many)]
    assert lines == [False, False, True, True, False]


def test_work_beyond_a_turns_time_waits_and_addresses_take_turns() -> None:
    clock = [0.0]
    budget = TurnBudget(2.0, lambda: clock[-1])
    done: list[tuple[int, str]] = []
    turn = 0

    def work(name: str) -> None:
        clock.append(clock[-1] + 1.0)
        done.append((turn, name))

    async def turns() -> list[bool]:
        nonlocal turn
        names = ["a1", "a2", "a3", "a4", "b1", "a5"]
        at_once = [budget.run(name[0], partial(work, name)) for name in names]
        while len(done) < len(names):
            turn += 1
            await asyncio.sleep(0)
        return at_once

    assert asyncio.run(turns()) == [True, True, False, False, False, False]
    assert done == [(0, "a1"), (0, "a2"), (1, "a3"), (1, "b1"), (2, "a4"), (2, "a5")]


def test_a_client_that_reads_slowly_has_time_and_one_that_does_not_has_none() -> None:
    clock = [0.0]
    table = Connections(ConnectionLimits(stall_seconds=30), lambda: clock[-1])
    (slow, reader), (stuck, line) = arrive(table, "10.0.0.1"), arrive(table, "10.0.0.1")
    for visit, each in ((slow, reader), (stuck, line)):
        visit.serve()
        each.unread = 1000
        visit.stall()

    for now in (20.0, 40.0, 60.0):
        clock.append(now)
        reader.unread -= 1
        asyncio.run(table.sweep())

    assert (reader.aborted, line.aborted) == (False, True)


def test_a_turn_of_the_event_loop_ends_some_of_those_that_are_late() -> None:
    clock = [0.0]
    table = Connections(ConnectionLimits(waiting=999, waiting_in_all=999), lambda: clock[-1])
    lines = [arrive(table, "10.0.0.1")[1] for _ in range(600)]
    clock.append(11.0)
    ended: list[int] = []

    async def turn() -> None:
        sweep = asyncio.create_task(table.sweep())
        while not sweep.done():
            await asyncio.sleep(0)
            ended.append(sum(line.aborted for line in lines))

    asyncio.run(turn())

    assert ended[-1] == 600
    assert max(now - before for before, now in pairwise([0, *ended])) <= 150


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses_of_one_network_of_ipv6_count_as_one(host: str, counted: str) -> None:
    assert counted_address(host) == counted
