"""The configuration for administrators works as it is shipped."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.plane import discovery, nats_server
from torchloom.plane.credentials import Credentials, credentials
from torchloom.plane.discovery import NatsAddress, NatsOwner

from ..harness.home import until
from .conftest import Planes

pytestmark = pytest.mark.process
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nats.conf"


@pytest.fixture
def keys(home: Path) -> Credentials:
    return credentials(home)


@pytest.fixture
def address(keys: Credentials, tmp_path: Path) -> Iterator[NatsAddress]:
    """Start the server as an administrator does, on a port that is free here."""
    folder = tmp_path / "etc"
    folder.mkdir()
    shutil.copy(CONFIGURATION, folder)
    shutil.copy(keys.folder / "account.conf", folder)
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
