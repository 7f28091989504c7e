"""A plane that a person starts by hand: nats/nats.conf as it is shipped, a weaver in front."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.client import plane as client
from torchloom.plane import discovery, nats_server
from torchloom.plane.credentials import Credentials, credentials
from torchloom.plane.discovery import NatsAddress, NatsOwner

from ..harness.home import until
from .conftest import Planes, alive

pytestmark = pytest.mark.process
CONFIGURATION = Path(__file__).parents[2] / "nats" / "nats.conf"
CORE = (sys.executable, "-m", "torchloom.weaver.core")


@pytest.fixture
def keys(home: Path) -> Credentials:
    return credentials(home)


@pytest.fixture
def address(keys: Credentials, tmp_path: Path) -> Iterator[NatsAddress]:
    """Start the server as an administrator does, on a port that is free here."""
    folder = tmp_path / "etc"
    folder.mkdir()
    shutil.copy(CONFIGURATION, folder)
    account = subprocess.run([*CORE, "--account"], capture_output=True, check=True).stdout
    (folder / "account.conf").write_bytes(account)
    port = nats_server.free_port("127.0.0.1")
    words = [nats_server.program(), "-c", str(folder / "nats.conf"), "-p", str(port)]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL, env={})
    address = NatsAddress("127.0.0.1", port, chosen=True)
    try:
        until(lambda: discovery.answers(address, keys))
        yield address
    finally:
        server.terminate()
        server.wait()


def test_the_server_knows_our_credentials_and_listens_at_one_address(
    address: NatsAddress, keys: Credentials
) -> None:
    assert discovery.owner_of(address, keys) is NatsOwner.OURS
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", address.port), 2)


def test_a_plane_uses_it_and_starts_none_of_its_own(address: NatsAddress, planes: Planes) -> None:
    found = planes.up(LOOM_NATS=address.url)

    assert found["nats"] == address.url
    assert set(found["parts"]) == {"weaver", "agent"}


Core = subprocess.Popen[str]


@pytest.fixture
def core(address: NatsAddress) -> Iterator[Core]:
    """Start a weaver in the foreground, and end it and its plane after the test."""
    env = {**os.environ, "torchLoom_ADDR": address.url, "LOOM_DASHBOARD": "none"}
    process = subprocess.Popen(CORE, env=env, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        with contextlib.suppress(Exception):  # nothing is left to end, after most tests
            client.leave(10)


def read_line(process: Core) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_weaver_in_the_foreground_uses_it_and_ends_with_ctrl_c(
    core: Core, address: NatsAddress
) -> None:
    first = read_line(core)
    parts = (client.find() or {})["parts"]
    core.send_signal(signal.SIGINT)
    code = core.wait()
    assert core.stdout is not None
    last = core.stdout.readlines()[-1]

    at = address.url
    assert first == f"weaver: up, with the NATS server that was running already, at {at}\n"
    assert set(parts) == {"weaver", "agent", "server"}
    assert (code, last) == (0, "weaver: the plane is down\n")
    assert client.find() is None
    assert [part["pid"] for part in parts.values() if alive(part["pid"])] == []


def test_a_second_weaver_is_refused_while_one_runs(core: Core) -> None:
    read_line(core)

    second = subprocess.run(CORE, capture_output=True, text=True, check=False)

    refusal = "weaver: this user's plane is running already; `loom down` ends it\n"
    assert (second.returncode, second.stdout, second.stderr) == (1, "", refusal)
    assert core.poll() is None


def test_a_plane_does_not_outlive_its_weaver_in_the_foreground(core: Core) -> None:
    read_line(core)
    found = client.find() or {}
    pids = [found["pid"], *(part["pid"] for part in found["parts"].values())]

    core.kill()

    until(lambda: not any(map(alive, pids)))
