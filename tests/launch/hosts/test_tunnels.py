"""Agents of other hosts come to the plane through the launch process, and nobody else does."""

import asyncio
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchloom import settings
from torchloom.bus.nats.client import Caller, NoWay
from torchloom.bus.subjects import agent_of_job, hello
from torchloom.launch import wire
from torchloom.launch.host import sockets
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.hosts.tunnels import CONTROL, Tunnels
from torchloom.launch.node_agent.uplink import TunnelClient
from torchloom.launch.supervisor.nodes import Nodes
from torchloom.unix import receive_message, send_message

TOKEN, APP = "secret", "train-1"
NATS = b"INFO {}\r\n"


class Office:
    """A launch process as far as relays are concerned, in a thread of its own."""

    def __init__(self, unreached: float = 20.0) -> None:
        self.unwatched: list[str] = []
        self._selector = selectors.DefaultSelector()
        self.tunnels = Tunnels(self._selector, APP, TOKEN, self.unwatched.append, unreached)
        ignored: Callable[..., None] = lambda *_: None  # noqa: E731
        self._nodes = Nodes(
            self._selector, ["n1"], TOKEN, APP, ignored, ignored, ignored, self.tunnels.take
        )
        self._listener = wire.listen_on("127.0.0.1")
        self._nodes.take_calls(self._listener)
        self.address = wire.LaunchAddress(host="127.0.0.1", port=self._listener.getsockname()[1])
        self._over = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def find(self, token: str = TOKEN, node: str = "n2") -> Caller:
        """Ask for the way as a relay does."""
        return asyncio.run(TunnelClient(self.address, token, node, "agent").find())

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self.tunnels.close()
        self._nodes.close()
        self._listener.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._over:
            for key, ready in self._selector.select(0.01):
                key.data(ready)


@pytest.fixture
def offices() -> Iterator[list[Office]]:
    made: list[Office] = []
    yield made
    for office in made:
        office.close()


@pytest.fixture
def office(offices: list[Office], home: Path) -> Office:
    offices.append(Office())
    return offices[0]


@pytest.fixture
def nats() -> Iterator[socket.socket]:
    """Give a server on loopback that says of itself what NATS does."""
    listener = wire.listen_on("127.0.0.1")
    listener.settimeout(10)
    yield listener
    listener.close()


def plane(answer: Mapping[str, Any]) -> "Future[Any]":
    """Be the plane for one question; what it was asked is the result."""
    asked: Future[Any] = Future()
    settings.plane_dir().mkdir(parents=True)
    listener = sockets.listen(settings.plane_dir() / CONTROL)
    listener.settimeout(10)

    def serve() -> None:
        with listener, listener.accept()[0] as channel:
            asked.set_result(receive_message(channel))
            send_message(channel, answer)

    threading.Thread(target=serve).start()
    return asked


def given(url: str, authority: str = "") -> dict[str, Any]:
    return {"ok": {"nats": url, "token": "signed", "authority": authority}}


def test_who_knows_the_job_is_vouched_for_and_joined_to_a_nats_that_only_its_host_reaches(
    office: Office, nats: socket.socket
) -> None:
    asked = plane(given(f"nats://127.0.0.1:{nats.getsockname()[1]}"))

    way = office.find()

    assert way.channel is not None
    with nats.accept()[0] as server, way.channel as channel:
        channel.settimeout(10)
        server.sendall(NATS)
        heard = channel.recv(len(NATS), socket.MSG_WAITALL)
        channel.sendall(b"CONNECT {}\r\n")
        assert (heard, server.recv(12, socket.MSG_WAITALL)) == (NATS, b"CONNECT {}\r\n")
    question = asked.result()
    assert question | {"key": ""} == {
        "ask": "admit",
        "version": 1,
        "agent": agent_of_job("n2", APP),
        "key": "",
    }
    assert way.credentials is not None
    assert way.credentials[0] == "signed"
    assert way.credentials[1] not in json.dumps(question)  # the seed stays where it was made


def test_a_nats_that_other_hosts_reach_is_named_and_nothing_goes_through_us(office: Office) -> None:
    plane(given("nats://10.77.0.11:4222"))

    way = office.find()

    assert (way.url, way.channel, way.tls) == ("nats://10.77.0.11:4222", None, None)


def test_who_does_not_know_the_token_is_not_even_asked_about(office: Office) -> None:
    asked = plane(given("nats://10.77.0.11:4222"))

    with pytest.raises(NoWay, match="it closed the connection"):
        office.find(token="guess")

    assert not asked.done()
    office.find()  # so that the plane of the test comes to its end


def test_who_only_claims_to_be_the_launch_process_is_told_nothing_more() -> None:
    listener = wire.listen_on("127.0.0.1")
    listener.setblocking(True)
    heard: list[Any] = []

    def pose() -> None:
        with listener.accept()[0] as channel:
            send_message(channel, {"do": "prove", "challenge": "c"})
            heard.extend((receive_message(channel), receive_message(channel)))
            told = {"nats": "nats://evil", "token": "t", "authority": ""}
            send_message(channel, {"do": "go", "proof": "guess", **told})

    posing = threading.Thread(target=pose)
    posing.start()
    address = wire.LaunchAddress(host="127.0.0.1", port=listener.getsockname()[1])

    with pytest.raises(NoWay, match="does not know our job"):
        asyncio.run(TunnelClient(address, TOKEN, "n2", "agent").find())

    posing.join()
    listener.close()
    assert TOKEN not in json.dumps(heard)


def test_without_a_plane_that_is_said_once(offices: list[Office], home: Path) -> None:
    offices.append(Office(unreached=0.0))

    for _ in range(3):
        with pytest.raises(NoWay, match="no plane runs on"):
            offices[0].find()

    assert offices[0].unwatched == [f"no plane runs on {host_name()}"]


def test_what_the_plane_refuses_is_told_in_its_words(office: Office) -> None:
    plane({"error": "n1 is the agent of the plane's own node", "code": "x", "exit_code": 2})

    with pytest.raises(NoWay, match="the agent of the plane's own node"):
        office.find()


def test_ranks_of_the_planes_host_use_its_agent_and_others_their_own(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ProcessIdentity.mine()
    agents = (mine, replace(mine, host="n2", boot="other"))
    own = str(settings.plane_dir() / "agent.sock")

    monkeypatch.setenv("LOOM_PLANE", "1")
    watched = [office.tunnels.uplink(agent) for agent in agents]
    monkeypatch.setenv("LOOM_PLANE", "0")
    unwatched = [office.tunnels.uplink(agent) for agent in agents]

    assert watched == [own, ""]
    assert unwatched == [own, own]


@pytest.mark.parametrize("node", ["n2", "n2.site.org", "node-" + "x" * 100, "nœud"])
def test_every_node_of_every_job_has_a_name_that_a_subject_can_hold(node: str) -> None:
    names = {agent_of_job(where, app) for app in ("a", "b") for where in (node, f"{node}1")}

    assert len(names) == 4
    assert all(hello(name) for name in names)
