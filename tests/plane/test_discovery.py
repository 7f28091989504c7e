"""What answers at an address is told apart: ours, somebody else's, nobody; none is written to."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.plane import discovery, nats_server
from torchloom.plane.credentials import Credentials, credentials
from torchloom.plane.discovery import BadNatsAddress, NatsAddress, NatsOwner, named, owner_of

from .conftest import Server, as_nobody

NOTHING = {"in_msgs": 0, "in_bytes": 0}


@pytest.fixture
def keys(tmp_path: Path) -> Credentials:
    return credentials(tmp_path)


def at(port: int, chosen: bool = True) -> NatsAddress:
    return NatsAddress("127.0.0.1", port, chosen=chosen)


@pytest.mark.parametrize(
    ("env", "address"),
    [
        ({}, NatsAddress("localhost", 4222)),
        ({"LOOM_NATS": ""}, NatsAddress("localhost", 4222)),
        ({"torchLoom_ADDR": "nats://b:5"}, NatsAddress("b", 5, chosen=True)),
        (
            {"LOOM_NATS": "nats://a", "torchLoom_ADDR": "nats://b:5"},
            NatsAddress("a", 4222, False, True),
        ),
        ({"LOOM_NATS": "tls://[::1]:9"}, NatsAddress("::1", 9, True, True)),
    ],
)
def test_the_environment_names_the_address(env: dict[str, str], address: NatsAddress) -> None:
    assert named(env) == address
    assert named({"LOOM_NATS": address.url}).url == address.url


@pytest.mark.parametrize("text", ["localhost:4222", "http://a", "nats://", "nats://a:port", "x"])
def test_what_is_no_address_is_refused_in_words(text: str) -> None:
    with pytest.raises(BadNatsAddress, match="write nats://HOST:4222"):
        named({"LOOM_NATS": text})


@pytest.mark.process
def test_a_server_that_knows_our_account_is_ours(
    keys: Credentials, server: Callable[..., Server]
) -> None:
    one = server("-c", str(keys.folder / "account.conf"))

    assert owner_of(at(one.port), keys) is NatsOwner.OURS
    assert discovery.answers(at(one.port), keys)
    assert {name: one.counters()[name] for name in NOTHING} == NOTHING


@pytest.mark.process
@pytest.mark.parametrize("words", [(), ("--auth", "secret"), ("--user", "u", "--pass", "p")])
def test_a_server_that_asks_for_nothing_or_for_a_password_is_foreign(
    words: tuple[str, ...], keys: Credentials, server: Callable[..., Server]
) -> None:
    one = server(*words)
    before = one.counters()

    assert owner_of(at(one.port), keys) is NatsOwner.FOREIGN
    assert not discovery.answers(at(one.port), keys)

    assert one.counters() == before


@pytest.mark.process
def test_the_server_of_another_plane_is_foreign(
    keys: Credentials, tmp_path: Path, server: Callable[..., Server]
) -> None:
    other = credentials(tmp_path / "other")
    one = server("-c", str(other.folder / "account.conf"))
    before = one.counters()

    assert owner_of(at(one.port), keys) is NatsOwner.FOREIGN

    assert one.counters() == before


@contextlib.contextmanager
def pretender(answers: tuple[bytes, ...]) -> Iterator[int]:
    """Answer each caller with the next of these lines after INFO, whatever it shows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                channel, _ = listener.accept()
                with channel:
                    channel.sendall(b'INFO {"auth_required":true,"nonce":"abc"}\r\n')
                    channel.recv(65536)
                    channel.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    "answers",
    [
        (b"PONG\r\n",),  # without credentials
        (b"-ERR 'Authorization Violation'\r\n", b"PONG\r\n"),  # with a stranger's
    ],
)
def test_a_server_that_takes_more_than_ours_is_foreign(
    answers: tuple[bytes, ...], keys: Credentials
) -> None:
    with pretender(answers) as port:
        assert owner_of(at(port), keys) is NatsOwner.FOREIGN


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-x\r\n", b"INFO [1]\r\n", b"INFO {\r\n"])
def test_what_speaks_another_language_is_foreign(
    greeting: bytes, keys: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        verdict = owner_of(at(port), keys)
        thread.join()

    assert verdict is NatsOwner.FOREIGN


def test_nobody_is_nobody(keys: Credentials) -> None:
    port = nats_server.free_port("127.0.0.1")

    assert owner_of(at(port), keys) is NatsOwner.NONE
    assert owner_of(at(port, chosen=False), keys) is NatsOwner.NONE
    assert owner_of(NatsAddress("no-such-host.invalid", 4222, chosen=True), keys) is NatsOwner.NONE


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="only root can have somebody else listen")
def test_what_another_user_put_at_the_usual_port_is_not_even_called(keys: Credentials) -> None:
    port = nats_server.free_port("127.0.0.1")
    listens, verdicts = os.pipe(), list[NatsOwner]()

    def ask() -> None:
        os.read(listens[0], 1)
        verdicts.append(owner_of(NatsAddress("localhost", port), keys))

    def listen() -> str:
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(1)
            os.write(listens[1], b"!")
            try:
                listener.accept()
            except TimeoutError:
                return "nobody called"
            return "called"

    thread = threading.Thread(target=ask)
    thread.start()
    told = as_nobody(listen)
    thread.join()

    assert (told, verdicts) == ("nobody called", [NatsOwner.FOREIGN])
