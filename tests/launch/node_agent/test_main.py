"""The agent as a process: how it is told where to go, and what it does with ranks' processes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.bus import subjects
from torchloom.bus.nats.client import NatsBus
from torchloom.bus.nats.credentials import read
from torchloom.messages.plane import Head, Kill

from ...harness.async_wait import come_true, live
from ...harness.home import until
from ...harness.nats_keys import Authority
from ...harness.nats_server import NatsServer
from .node import JOB, Node
from .weaving import Database, FakeWeaver

pytestmark = pytest.mark.process


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", authority.config)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def node(tmp_path: Path, server: NatsServer, authority: Authority) -> Iterator[Node]:
    node = Node(tmp_path, server.url)
    rights = subjects.may_publish("here"), subjects.may_subscribe("here")
    jwt, seed = authority.user(*rights)
    path = tmp_path / "here.creds"
    path.touch(0o600)
    path.write_text(f"-----BEGIN-----\n{jwt}\n------END------\n\n-----BEGIN-----\n{seed}\n---\n")
    yield node
    node.end()


def credentials(node: Node) -> tuple[str, str]:
    return "--credentials", str(node.folder / "here.creds")


def test_with_credentials_of_its_own_an_agent_works_on_a_server_that_trusts_few(
    server: NatsServer, node: Node, authority: Authority
) -> None:
    database = Database()

    async def story() -> None:
        rights = (subjects.EVERYTHING,), (subjects.EVERYTHING,)
        user = authority.user(*rights)
        inbox = subjects.inbox("weaver")
        bus = await NatsBus.connect(server.url, credentials=user, inbox=inbox)
        weaver = FakeWeaver(bus, database)
        await weaver.start()
        node.start_agent(*credentials(node))
        rank = node.start_rank(0)
        await come_true(lambda: any(beat.progress for beat in weaver.beats))
        await come_true(lambda: database.steps().get((JOB, 0)))
        life = Head(1, JOB, 0, 0, f"life-{rank.pid}")
        other = Head(1, JOB, 0, 0, "life-of-another")
        for head, signum in ((other, signal.SIGKILL), (life, signal.SIGUSR1)):
            await weaver.tell("here", Kill(head, weaver.epoch, signum, "hang_rank_0"))
        await come_true(lambda: rank.poll() is not None)
        assert rank.returncode == -signal.SIGUSR1
        assert node.kill_agent(signal.SIGTERM) == 0
        await bus.close()

    live(story)

    jwt, seed = read(node.folder / "here.creds")
    log = (node.folder / "agent.log").read_text()
    assert jwt not in log
    assert seed not in log


def test_how_the_agent_is_lies_beside_its_socket(node: Node) -> None:
    node.start_agent(*credentials(node))
    status = node.socket.with_suffix(".json")

    def connected() -> bool:
        return status.exists() and json.loads(status.read_text())["connected"]

    until(connected)
    found = json.loads(status.read_text())

    assert (found["agent"], found["greeted"], found["ranks"]) == ("here", False, 0)
    assert (found["pending"], found["dropped"]) == (0, {})


def test_a_second_agent_leaves_and_the_first_goes_on(node: Node) -> None:
    node.start_agent(*credentials(node))
    until(node.socket.exists)

    words = node.agent_command(*credentials(node))
    second = subprocess.run(words, capture_output=True, text=True, check=False)

    assert second.returncode == 1
    assert "another agent of this node writes to" in second.stderr
    assert node.socket.exists()


def test_without_a_server_named_it_says_what_to_set(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torchloom.launch.node_agent", "--home", str(tmp_path)]

    done = subprocess.run(words, capture_output=True, text=True, check=False, env={})

    assert (done.returncode, done.stderr) == (
        2,
        "agent: no NATS server is named; pass --nats or set LOOM_NATS\n",
    )


def test_the_environment_tells_as_much_as_the_command_line(node: Node, server: NatsServer) -> None:
    env = {
        "LOOM_NATS": server.url,
        "LOOM_NATS_CREDS": str(node.folder / "here.creds"),
        "LOOM_AGENT_ID": "here",
        "LOOM_HOME": str(node.folder / "home"),
        "XDG_RUNTIME_DIR": str(node.folder),
    }
    agent = subprocess.Popen([sys.executable, "-m", "torchloom.launch.node_agent"], env=env)
    status = (node.folder / "torchloom").glob

    try:
        until(
            lambda: any(
                json.loads(p.read_text())["connected"] for p in status("plane-*/agent.json")
            )
        )
    finally:
        agent.terminate()
        code = agent.wait()

    assert code == 0
    assert (node.folder / "home" / "plane" / "spool" / "here" / "lock").exists()
    assert list(status("plane-*/agent.sock")) == []
