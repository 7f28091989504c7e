"""A plane with a server for a module, and a caller who may do everything."""

from collections.abc import Iterator

import httpx
import pytest

from ..harness.server_plane import Plane, Server, running


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    return plane.start_server()


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
