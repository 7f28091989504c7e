import socket

import pytest

from torchloom.launch import wire


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/run/app.launch", wire.LaunchAddress(path="/run/app.launch")),
        ("10.0.0.1:29500", wire.LaunchAddress(host="10.0.0.1", port=29500)),
        ("[fe80::1]:29500", wire.LaunchAddress(host="fe80::1", port=29500)),
    ],
)
def test_an_address_survives_being_written_and_read(text: str, address: wire.LaunchAddress) -> None:
    assert wire.LaunchAddress.parse(text) == address
    assert str(address) == text


def test_a_proof_holds_for_one_token_one_side_and_one_challenge() -> None:
    given = wire.proof("token", "agent", "challenge")

    assert wire.is_proof(given, "token", "agent", "challenge")
    assert not wire.is_proof(given, "other", "agent", "challenge")
    assert not wire.is_proof(given, "token", "launcher", "challenge")
    assert not wire.is_proof(given, "token", "agent", "another")


@pytest.mark.parametrize("given", [None, "", 7, b"x", "\ud800"])
def test_what_is_no_text_is_no_proof(given: object) -> None:
    assert not wire.is_proof(given, "token", "agent", "challenge")
    assert wire.proof("token", "agent", str(given))


def test_no_two_challenges_are_alike() -> None:
    assert len({wire.nonce() for _ in range(100)}) == 100


def test_a_listener_is_at_one_address_and_called_there() -> None:
    with wire.listen_on("127.0.0.1") as listener:
        host, port = listener.getsockname()
        with wire.LaunchAddress(host=host, port=port).connect() as channel:
            kept = channel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

            assert (host, channel.getpeername()) == ("127.0.0.1", (host, port))
            assert kept


def test_the_own_address_is_the_one_towards_the_other() -> None:
    assert wire.own_address_towards("127.0.0.1") == "127.0.0.1"
