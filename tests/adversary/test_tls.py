"""Strangers at a port that speaks TLS: a handshake has the limits of a request."""

import contextlib
import json
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.plane.certificates import certificate
from torchloom.plane.nats_server import Certificate

from ..harness.cluster import Cluster
from ..harness.home import until
from . import limited
from .limited import PATIENCE, Limited, read_all, request, serving
from .test_connections import (
    HELLO,
    MIB,
    TURN,
    UPGRADE,
    Normal,
    client_hello,
    finish,
    flood,
    frame,
    rsa_certificate,
    send,
    swarm,
    trusting_none,
)

pytestmark = pytest.mark.process
ATTACKER = """
import socket, sys
address, begin = (sys.argv[1], int(sys.argv[2])), bytes.fromhex(sys.argv[3])
channels = []
for _ in range(100):
    channels.append(socket.create_connection(address))
    try:
        channels[-1].sendall(begin)
    except OSError:
        pass
print("there", flush=True)
sys.stdin.read()
"""
MAKE = """
import sys, pathlib
from torchloom.plane.certificates import certificate
made = certificate(pathlib.Path(sys.argv[1]), sys.argv[2])
print(made.chain, made.key, made.authority)
"""
ASK = """
import ssl, sys, urllib.request
trust = ssl.create_default_context(cafile=sys.argv[2])
print(urllib.request.urlopen(sys.argv[1], context=trust, timeout=30).read().decode())
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("authority"), "127.0.0.1")


@pytest.fixture(scope="module")
def server(shown: Certificate) -> Iterator[Limited]:
    limits = {"handshake_seconds": 0.6, "head_seconds": 0.6, "waiting": 20}
    with serving(shown, **limits) as started:
        yield started


@pytest.fixture(scope="module")
def roomy(shown: Certificate) -> Iterator[Limited]:
    """Give a server with the limits that it has in use."""
    with serving(shown) as started:
        yield started


@pytest.fixture(scope="module")
def rsa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """Give a server with a certificate whose signatures take long."""
    with serving(rsa_certificate(tmp_path_factory.mktemp("rsa"))) as started:
        yield started


def answers(server: Limited) -> bool:
    return server.ask().endswith(b"here")


@pytest.mark.parametrize(
    "begin", [request(), b"\x00" * 1000, b"\xff" * 1000, HELLO + b"\x00" * 1000], ids=str
)
def test_what_is_no_tls_is_ended_and_the_next_one_is_served(server: Limited, begin: bytes) -> None:
    with server.connect() as channel:
        said = send(channel, begin)

    assert b"HTTP" not in said
    assert answers(server)


def test_old_versions_of_tls_are_refused(server: Limited, shown: Certificate) -> None:
    found = {}
    for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        trust = ssl.create_default_context(cafile=shown.authority)
        trust.set_ciphers("ALL:@SECLEVEL=0")  # whatever this machine's OpenSSL thinks of it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that it is old is the point
            trust.minimum_version = trust.maximum_version = version
        try:
            with trust.wrap_socket(server.connect(), server_hostname="127.0.0.1") as channel:
                found[version.name] = channel.version()
        except ssl.SSLError as error:
            found[version.name] = error.reason

    assert found["TLSv1_1"] not in ("TLSv1.1", None)
    assert (found["TLSv1_2"], found["TLSv1_3"]) == ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize("begin", [b"", HELLO])
def test_a_handshake_that_does_not_end_is_ended(server: Limited, begin: bytes) -> None:
    with server.connect() as channel:
        channel.sendall(begin)

        assert read_all(channel) == b""

    until(lambda: server.sockets() < 5, PATIENCE)
    assert answers(server)


def test_unfinished_handshakes_make_room_for_others(server: Limited) -> None:
    with contextlib.ExitStack() as stack:
        websocket = stack.enter_context(server.open())
        websocket.sendall(request("/", *UPGRADE))
        assert websocket.recv(4096).startswith(b"HTTP/1.1 101 ")
        for _ in range(200):
            channel = stack.enter_context(server.connect())
            with contextlib.suppress(ConnectionError):
                channel.sendall(HELLO)

        assert answers(server)

        until(lambda: server.sockets() < 10, PATIENCE)
        websocket.sendall(frame(1, b"still here"))
        assert websocket.recv(100).endswith(b"still here")


def test_floods_of_handshakes_do_not_hold_up_the_event_loop(roomy: Limited) -> None:
    roomy.lag()

    turns = [flood(roomy, HELLO).cpu for _ in range(8)]

    assert max(turns) < TURN, turns


@pytest.mark.parametrize("kind", ["roomy", "rsa"])
def test_handshakes_of_many_addresses_do_not_hold_up_the_event_loop(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Limited = request.getfixturevalue(kind)
    hello = client_hello()

    assert swarm(server, hello[:50], hello[50:], is_held=True).cpu < TURN
    assert answers(server)


@pytest.mark.parametrize("kind", ["roomy", "rsa"])
def test_handshakes_that_end_at_one_moment_do_not_hold_up_the_event_loop(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Limited = request.getfixturevalue(kind)

    assert finish(server, 2000, is_held=True).cpu < TURN
    assert answers(server)


def test_a_client_of_another_address_gets_in_while_handshakes_flood(rsa: Limited) -> None:
    hello = client_hello()

    with Normal(rsa) as normal:
        swarm(rsa, hello[:50], hello[50:])

    assert normal.answers > 3


def test_a_handshake_that_comes_in_small_pieces_is_completed(roomy: Limited) -> None:
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting_none().wrap_bio(theirs, ours)
    with roomy.connect() as channel:
        for _ in range(2):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            for byte in ours.read():
                channel.sendall(bytes((byte,)))
            if not client.version():
                theirs.write(channel.recv(1 << 16))
        client.write(request("/", "Connection: close"))
        channel.sendall(ours.read())
        said = b""
        while not said:  # tickets of the session come first
            theirs.write(channel.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                said = client.read()

    assert said.startswith(b"HTTP/1.1 200 ")


def test_behind_a_handshake_the_limits_of_http_hold(server: Limited) -> None:
    before = server.resident()
    with server.open() as channel:
        said = send(channel, b"GET / HTTP/1.1\r\nX: ", *[b"a" * MIB] * 40)
    with server.open() as channel:
        channel.sendall(b"GET / HTTP/1.1\r\n")
        late = read_all(channel)

    assert said.startswith(b"HTTP/1.1 431 ") or said == b""  # it may end before that is read
    assert late.startswith(b"HTTP/1.1 408 ")
    assert server.resident() - before < 20 * MIB


def test_a_host_that_holds_its_connections_open_does_not_keep_others_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    make = [sys.executable, "-c", MAKE, str(tmp_path), cluster.addresses["ctl"]]
    chain, key, authority = cluster.run("ctl", make).stdout.split()
    limits = json.dumps({"waiting": 20, "total": 40, "of_peer": 30, "handshake_seconds": 60})
    words = [sys.executable, "-P", str(limited.__file__), limits, chain, key]
    pipe = subprocess.PIPE
    served = cluster.popen("ctl", [*words, cluster.addresses["ctl"]], stdout=pipe)
    assert served.stdout is not None
    place = [cluster.addresses["ctl"], served.stdout.readline().strip()]
    attack = [sys.executable, "-c", ATTACKER, *place, HELLO.hex()]
    attackers = [cluster.popen(name, attack, stdin=pipe, stdout=pipe) for name in ("n1", "n2")]
    for each in attackers:
        assert each.stdout is not None
        assert each.stdout.readline() == "there\n"

    ask = [sys.executable, "-c", ASK, f"https://{place[0]}:{place[1]}/", authority]
    found = [cluster.run(name, ask) for name in ("n3", "n1")]

    assert [(done.stdout, done.stderr) for done in found] == [("here\n", "")] * 2
