"""Both buses, each behind the same three words: a bus of it, stop, start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from torchloom.bus.api import Bus
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.bus.nats.client import NatsBus

from ..harness.nats_server import NatsServer


class Middle(Protocol):
    """What stands between the ends of a bus."""

    async def bus(self, inbox: str = "") -> Bus: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...


class _InMemory:
    def __init__(self) -> None:
        self._exchange = Exchange()
        self.stop, self.start = self._exchange.stop, self._exchange.start

    async def bus(self, inbox: str = "") -> Bus:
        return MemoryBus(self._exchange, inbox)


class _OverNats:
    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.stop, self.start = server.stop, server.start

    async def bus(self, inbox: str = "") -> Bus:
        return await NatsBus.connect(self._server.url, inbox=inbox)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.process)])
def middle(request: pytest.FixtureRequest) -> Middle:
    if request.param == "memory":
        return _InMemory()
    return _OverNats(request.getfixturevalue("nats_server"))
