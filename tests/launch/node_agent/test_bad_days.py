"""Agent, NATS and weaver die, stand still and come back; the ranks' own files say what is true."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.bus.nats.client import NatsBus

from ...harness.async_wait import come_true, live
from ...harness.nats_server import NatsServer
from .node import JOB, Node
from .weaving import Database, FakeWeaver

pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def node(tmp_path: Path, server: NatsServer) -> Iterator[Node]:
    node = Node(tmp_path, server.url)
    yield node
    node.end()


async def weaver_on(server: NatsServer, database: Database) -> tuple[FakeWeaver, NatsBus]:
    bus = NatsBus(server.url)
    bus.start()
    weaver = FakeWeaver(bus, database)
    await weaver.start()
    return weaver, bus


async def stored_all(database: Database, node: Node, ranks: list[int]) -> None:
    def same() -> bool:
        steps = database.steps()
        return all(len(steps.get((JOB, rank), [])) >= len(node.diary(rank)) for rank in ranks)

    await come_true(same)


class Growth:
    """True when the database has more of a rank than it had."""

    def __init__(self, database: Database, rank: int, by: int = 50) -> None:
        self._database, self._rank = database, rank
        self._goal = self._count() + by

    def __call__(self) -> bool:
        return self._count() >= self._goal

    def _count(self) -> int:
        return len(self._database.steps().get((JOB, self._rank), []))


def test_on_a_quiet_day_everything_is_stored_once(server: NatsServer, node: Node) -> None:
    database = Database()

    async def story() -> None:
        weaver, bus = await weaver_on(server, database)
        node.start_agent()
        node.start_rank(0)
        node.start_rank(1)
        await come_true(Growth(database, 1, 200))
        assert await node.finish() == [0, 0]
        await stored_all(database, node, [0, 1])
        await come_true(lambda: weaver.beats)
        assert node.kill_agent(signal.SIGTERM) == 0
        await bus.close()

    live(story)

    assert database.steps() == {(JOB, 0): node.diary(0), (JOB, 1): node.diary(1)}
    assert database.twice == 0


def test_an_agent_killed_five_times_loses_and_doubles_nothing(
    server: NatsServer, node: Node
) -> None:
    database = Database()

    async def story() -> None:
        _, bus = await weaver_on(server, database)
        node.start_agent()
        node.start_rank(0)
        node.start_rank(1)
        for _ in range(5):
            await come_true(Growth(database, 0))
            node.kill_agent()
            node.start_agent()
        await come_true(Growth(database, 1))
        assert await node.finish() == [0, 0]
        await stored_all(database, node, [0, 1])
        await bus.close()

    live(story)

    assert database.steps() == {(JOB, 0): node.diary(0), (JOB, 1): node.diary(1)}
    assert (database.twice, database.dropped) == (0, 0)


def test_nats_stopped_for_three_seconds_and_killed_and_the_weaver_too(
    server: NatsServer, node: Node
) -> None:
    database = Database()

    async def story() -> None:
        weaver, bus = await weaver_on(server, database)
        node.start_agent()
        node.start_rank(0)
        await come_true(Growth(database, 0))
        server.pause()
        before = len(node.diary(0))
        await asyncio.sleep(3)
        assert len(node.diary(0)) > before + 20  # the rank noticed nothing
        server.go_on()
        await come_true(Growth(database, 0))
        for _ in range(3):
            server.stop()
            await asyncio.sleep(0.3)
            server.start()
            await come_true(Growth(database, 0))
            await bus.close()
            await asyncio.sleep(0.3)
            weaver, bus = await weaver_on(server, database)
            await come_true(Growth(database, 0))
        assert weaver.hellos  # the last one came later than the agent, and was found all the same
        assert await node.finish() == [0]
        await stored_all(database, node, [0])
        await bus.close()

    live(story)

    assert database.steps() == {(JOB, 0): node.diary(0)}
    assert (database.twice, database.dropped) == (0, 0)


def test_all_of_it_at_once_and_a_rank_that_dies_and_comes_back(
    server: NatsServer, node: Node
) -> None:
    database = Database()

    async def story() -> list[tuple[str, int]]:
        rank = node.start_rank(0)  # before there is an agent, a weaver; NATS alone is up
        await come_true(lambda: (node.folder / "diary-0").exists())
        node.start_agent()
        await come_true(lambda: len(node.diary(0)) > 100)
        server.stop()
        node.kill_agent()
        node.start_agent()
        _, bus = await weaver_on(server, database)
        await asyncio.to_thread(server.start)
        await come_true(Growth(database, 0))
        rank.kill()
        rank.wait()
        first_life = node.diary(0)
        node.start_rank(0)
        server.pause()
        node.kill_agent()
        node.start_agent()
        await asyncio.sleep(0.5)
        server.go_on()
        await come_true(Growth(database, 0))
        await node.finish()
        await come_true(lambda: database.steps()[JOB, 0][-1] == node.diary(0)[-1])
        await bus.close()
        return first_life

    first_life = live(story)

    second_life = node.diary(0)[len(first_life) :]
    stored = database.steps()[JOB, 0]
    count = len(stored) - len(second_life)
    assert stored == [*first_life[:count], *second_life]  # what its agent never heard died with it
    assert len(first_life) - count < 200
    assert (database.twice, database.dropped) == (0, 0)
