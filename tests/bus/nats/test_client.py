"""What is special about NATS: a server that is late, stands still, or trusts not everybody."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.bus import subjects
from torchloom.bus.api import BusLost, NoReply
from torchloom.bus.nats.client import NatsBus

from ...harness.async_wait import come_true, live
from ...harness.home import allowed
from ...harness.nats_keys import Authority
from ...harness.nats_server import NatsServer

pytestmark = pytest.mark.process


def test_a_server_that_comes_late_finds_subscriptions_waiting(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)

    async def story() -> list[bytes]:
        bus, heard = NatsBus(server.url), []

        async def hear(_: str, data: bytes, reply: str) -> None:
            heard.append(data)

        bus.start()
        await bus.subscribe("s", hear)
        with pytest.raises(BusLost):
            await bus.publish("s", b"too early")
        await asyncio.to_thread(server.start)
        await come_true(lambda: bus.connected)
        await bus.publish("s", b"now")
        await come_true(lambda: heard)
        await bus.close()
        return heard

    try:
        assert live(story) == [b"now"]
    finally:
        server.stop()


def test_without_a_server_connect_says_so_and_leaves_no_task(tmp_path: Path) -> None:
    async def story() -> set[str]:
        with pytest.raises(BusLost, match="cannot connect to a NATS server"):
            await NatsBus.connect("nats://127.0.0.1:1", patience=0.2)
        return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}

    assert live(story) == set()


def test_a_server_that_stands_still_makes_nobody_wait_and_nothing_grow(
    nats_server: NatsServer,
) -> None:
    async def story() -> tuple[int, float]:
        bus, loop = await NatsBus.connect(nats_server.url), asyncio.get_running_loop()
        nats_server.pause()
        began, taken, refused = loop.time(), 0, ""
        while not refused and taken < 1000:
            try:
                await bus.publish("s", bytes(100_000))
                taken += 1
            except BusLost as error:
                refused = str(error)
            await asyncio.sleep(0)
        lasted = loop.time() - began
        assert "accepts no messages" in refused
        nats_server.go_on()
        await bus.flush()
        await bus.close()
        return taken * 100_000, lasted

    taken, lasted = live(story)

    assert taken < 40 << 20
    assert lasted < allowed(5)


def test_closing_does_not_wait_for_a_server_that_stands_still(nats_server: NatsServer) -> None:
    async def story() -> float:
        bus, loop = await NatsBus.connect(nats_server.url), asyncio.get_running_loop()
        nats_server.pause()
        for _ in range(50):
            await bus.publish("s", bytes(100_000))
            await asyncio.sleep(0)
        began = loop.time()
        await bus.close()
        return loop.time() - began

    assert live(story) < allowed(5)


def test_thirty_restarts_of_the_server_are_thirty_returns(nats_server: NatsServer) -> None:
    async def story() -> tuple[int, list[bytes]]:
        bus, heard, backs = await NatsBus.connect(nats_server.url), [], []

        async def hear(_: str, data: bytes, reply: str) -> None:
            heard.append(data)

        bus.on_back(lambda: backs.append(1))
        await bus.subscribe("s", hear)
        for number in range(30):
            nats_server.stop()
            await asyncio.to_thread(nats_server.start)
            await come_true(lambda back=number + 1: bus.connected and len(backs) == back)
            await bus.publish("s", str(number).encode())
            await come_true(lambda count=number + 1: len(heard) == count)
        await bus.close()
        return len(backs), heard

    assert live(story) == (30, [str(number).encode() for number in range(30)])


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def strict_server(tmp_path: Path, authority: Authority) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path, authority.config)
    server.start()
    yield server
    server.stop()


def test_only_who_has_credentials_gets_in(strict_server: NatsServer, authority: Authority) -> None:
    jwt, _ = authority.user((">",), (">",))
    _, foreign_seed = Authority().user((">",), (">",))

    async def story() -> list[bool]:
        came_in = []
        for credentials in (None, (jwt, foreign_seed)):
            bus = NatsBus(strict_server.url, credentials=credentials)
            bus.start()
            await come_true(lambda bus=bus: "Authorization Violation" in bus.last_error)
            came_in.append(bus.connected)
            await bus.close()
        return came_in

    assert live(story) == [False, False]


def test_an_agent_speaks_for_itself_alone_and_hears_only_what_is_for_it(
    strict_server: NatsServer, authority: Authority
) -> None:
    heard: dict[str, list[str]] = {"weaver": [], "one": [], "two": []}

    async def story() -> None:
        everything = authority.user((">",), (">",))
        weaver = await NatsBus.connect(strict_server.url, credentials=everything)

        async def greet(subject: str, data: bytes, reply: str) -> None:
            heard["weaver"].append(subject)
            await weaver.publish(reply or subjects.down(data.decode()), b"welcome")

        await weaver.subscribe(f"{subjects.PREFIX}.agent.*.hello", greet)
        agents = {}
        for name in ("one", "two"):
            rights = subjects.may_publish(name), subjects.may_subscribe(name)
            agents[name] = await NatsBus.connect(
                strict_server.url,
                credentials=authority.user(*rights),
                inbox=subjects.inbox(name),
            )

            async def hear(subject: str, _: bytes, reply: str, name: str = name) -> None:
                heard[name].append(subject)

            await agents[name].subscribe(subjects.down(name), hear)
        await agents["two"].subscribe(subjects.down("one"), hear)  # refused by the server
        await agents["two"].subscribe(f"{subjects.inbox('one')}.>", hear)
        for agent in agents.values():
            await agent.flush()

        assert await agents["one"].request(subjects.hello("one"), b"one", 10) == b"welcome"
        await agents["one"].publish(subjects.hello("two"), b"two")
        with pytest.raises(NoReply):
            await agents["one"].request(subjects.hello("two"), b"two", 0.2)
        await weaver.publish(subjects.down("one"), b"")
        await agents["two"].publish(subjects.hello("two"), b"two")
        await come_true(lambda: heard["one"] and heard["two"])
        for bus in (weaver, *agents.values()):
            await bus.close()

    live(story)

    assert heard == {
        "weaver": [subjects.hello("one"), subjects.hello("two")],
        "one": [subjects.down("one")],
        "two": [subjects.down("two")],
    }


def test_after_a_flush_the_server_knows_of_what_was_said_and_subscribed(
    nats_server: NatsServer,
) -> None:
    async def story() -> int:
        one, other = await NatsBus.connect(nats_server.url), await NatsBus.connect(nats_server.url)

        async def answer(_: str, data: bytes, reply: str) -> None:
            await one.publish(reply, data)

        answered = 0
        for number in range(300):
            await one.subscribe(f"s.{number}", answer)
            await one.flush()
            answered += await other.request(f"s.{number}", b"x", 10) == b"x"
        await one.close()
        await other.close()
        return answered

    assert live(story) == 300


def test_who_knows_a_certificate_says_nothing_to_a_server_without_one(
    nats_server: NatsServer,
) -> None:
    async def story() -> tuple[bool, str]:
        bus = NatsBus(nats_server.url, tls=ssl.create_default_context())
        bus.start()
        await come_true(lambda: bus.last_error)
        await bus.close()
        return bus.connected, bus.last_error

    assert live(story) == (False, "the server does not offer TLS")


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.2\r\n", b"INFO []\r\n", b"INFO {\r\n"])
def test_what_is_no_nats_server_is_left(words: bytes) -> None:
    async def story() -> str:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(words)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        bus = NatsBus(f"nats://127.0.0.1:{port}")
        bus.start()
        await come_true(lambda: bus.last_error)
        await bus.close()
        server.close()
        return bus.last_error

    assert live(story).startswith("this is not a NATS server")


def test_a_subject_with_blanks_or_line_ends_is_no_subject(nats_server: NatsServer) -> None:
    async def story() -> None:
        bus = await NatsBus.connect(nats_server.url)
        for subject in ("", "a b", "a\r\nPUB b 0\r\n\r\n", "a\t"):
            with pytest.raises(ValueError, match="is not a subject"):
                await bus.publish(subject, b"")
            with pytest.raises(ValueError, match="is not a subject"):
                await bus.publish("a", b"", f"{subject} ")
        await bus.flush()
        await bus.close()

    live(story)


def test_while_much_is_collected_others_are_still_heard_soon(nats_server: NatsServer) -> None:
    """Ten thousand messages a second make it read in portions; nothing is lost by that."""

    async def story() -> tuple[int, float]:
        crowd, bus = await NatsBus.connect(nats_server.url), await NatsBus.connect(nats_server.url)
        loop, waits, heard = asyncio.get_running_loop(), [], []
        await bus.collect("beat.*", heard.extend)

        async def answer(_: str, data: bytes, reply: str) -> None:
            await bus.publish(reply, data)

        await bus.subscribe("ask", answer)
        await bus.flush()
        for turn in range(100):
            for number in range(100):
                await crowd.publish(f"beat.{number}", b"%d" % turn)
            asked = loop.time()
            await crowd.request("ask", b"", 10)
            waits.append(loop.time() - asked)
        await come_true(lambda: len(heard) == 10_000)
        await crowd.close()
        await bus.close()
        return len(heard), sorted(waits)[50]

    heard, usual = live(story)

    assert heard == 10_000
    assert usual < allowed(0.1)
