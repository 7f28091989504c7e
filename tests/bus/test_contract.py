"""What every bus promises, asked of the one in memory and of a real NATS server alike."""

import asyncio

import pytest

from torchloom.bus.api import Bus, BusLost, NoReply, TooLong

from ..harness.async_wait import come_true, live
from .conftest import Middle

Said = tuple[str, bytes, str]


class Ear:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.heard: list[Said] = []

    async def __call__(self, subject: str, data: bytes, reply: str) -> None:
        self.heard.append((subject, data, reply))


async def settled(bus: Bus) -> None:
    """Come back when what this bus subscribed to is known to the middle."""
    await bus.flush()


def test_what_is_published_is_heard_by_all_who_subscribed_in_order(middle: Middle) -> None:
    async def story() -> tuple[list[Said], list[Said]]:
        speaker, one, two = await middle.bus(), await middle.bus(), await middle.bus()
        first, second = Ear(), Ear()
        await one.subscribe("a.b", first)
        await two.subscribe("a.b", second)
        await settled(one)
        await settled(two)
        for number in range(100):
            await speaker.publish("a.b", str(number).encode())
        await come_true(lambda: len(first.heard) == len(second.heard) == 100)
        for bus in (speaker, one, two):
            await bus.close()
        return first.heard, second.heard

    first, second = live(story)

    assert first == second == [("a.b", str(number).encode(), "") for number in range(100)]


@pytest.mark.parametrize(
    ("pattern", "heard"),
    [
        ("a.*.c", ["a.b.c", "a.x.c"]),
        ("a.>", ["a.b.c", "a.x.c", "a.b", "a.b.c.d"]),
        ("a.b", ["a.b"]),
        (">", ["a.b.c", "a.x.c", "a.b", "a.b.c.d", "b"]),
    ],
)
def test_wildcards_stand_for_one_word_or_for_all_that_follow(
    middle: Middle, pattern: str, heard: list[str]
) -> None:
    async def story() -> list[str]:
        bus, ear = await middle.bus(), Ear()
        await bus.subscribe(pattern, ear)
        end = Ear()
        await bus.subscribe("the.end", end)
        for subject in ("a.b.c", "a.x.c", "a.b", "a.b.c.d", "b", "the.end"):
            await bus.publish(subject, b"")
        await come_true(lambda: end.heard and len(ear.heard) >= len(heard))
        await bus.close()
        return [subject for subject, _, _ in ear.heard if subject != "the.end"]

    assert live(story) == heard


def test_a_request_gets_the_answer_of_who_listens(middle: Middle) -> None:
    async def story() -> list[bytes]:
        asking, answering = await middle.bus("_INBOX.mine"), await middle.bus()

        async def double(_: str, data: bytes, reply: str) -> None:
            assert reply.startswith("_INBOX.mine.")
            await answering.publish(reply, data * 2)

        await answering.subscribe("double", double)
        await settled(answering)
        asked = [asking.request("double", str(number).encode(), 10) for number in range(20)]
        answers = await asyncio.gather(*asked)
        await asking.close()
        await answering.close()
        return answers

    assert live(story) == [str(number).encode() * 2 for number in range(20)]


def test_a_request_that_nobody_hears_fails_at_once_and_an_unanswered_one_in_time(
    middle: Middle,
) -> None:
    async def story() -> None:
        bus = await middle.bus()
        with pytest.raises(NoReply):
            await bus.request("nobody.there", b"", 30)
        await bus.subscribe("silent", Ear())
        with pytest.raises(NoReply, match=r"no answer on silent within 0\.05 s"):
            await bus.request("silent", b"", 0.05)
        await bus.close()

    live(story)


def test_a_handler_that_fails_is_counted_and_hears_on(middle: Middle) -> None:
    async def story() -> tuple[list[bytes], int]:
        bus, heard = await middle.bus(), []

        async def stumble(_: str, data: bytes, reply: str) -> None:
            if data == b"1":
                raise RuntimeError("no ones, please")
            heard.append(data)

        await bus.subscribe("numbers", stumble)
        for number in range(3):
            await bus.publish("numbers", str(number).encode())
        await come_true(lambda: len(heard) == 2)
        failures = bus.failures
        await bus.close()
        return heard, failures

    assert live(story) == ([b"0", b"2"], 1)


def test_a_handler_is_called_again_only_when_it_is_done(middle: Middle) -> None:
    async def story() -> list[str]:
        bus, diary = await middle.bus(), []

        async def slowly(_: str, data: bytes, reply: str) -> None:
            diary.append(f"in {data.decode()}")
            await asyncio.sleep(0.01)
            diary.append(f"out {data.decode()}")

        await bus.subscribe("work", slowly)
        await bus.publish("work", b"1")
        await bus.publish("work", b"2")
        await come_true(lambda: len(diary) == 4)
        await bus.close()
        return diary

    assert live(story) == ["in 1", "out 1", "in 2", "out 2"]


def test_an_ended_subscription_hears_no_more(middle: Middle) -> None:
    async def story() -> list[bytes]:
        bus, ended, other = await middle.bus(), Ear(), Ear()
        subscription = await bus.subscribe("s", ended)
        await bus.publish("s", b"1")
        await come_true(lambda: ended.heard)
        await subscription.end()
        await bus.subscribe("s", other)
        await bus.publish("s", b"2")
        await come_true(lambda: other.heard)
        await bus.close()
        return [data for _, data, _ in ended.heard]

    assert live(story) == [b"1"]


def test_what_is_too_long_is_refused(middle: Middle) -> None:
    async def story() -> None:
        bus = await middle.bus()
        with pytest.raises(TooLong):
            await bus.publish("s", bytes((1 << 20) + 1))
        await bus.publish("s", bytes(1 << 20))
        await bus.flush()
        await bus.close()

    live(story)


def test_cut_off_nothing_is_kept_and_back_again_subscriptions_still_hold(middle: Middle) -> None:
    async def story() -> tuple[list[bytes], list[str]]:
        bus, ear, diary = await middle.bus(), Ear(), []
        bus.on_lost(lambda: diary.append("lost"))
        bus.on_back(lambda: diary.append("back"))
        await bus.subscribe("s", ear)
        await bus.publish("s", b"before")
        await come_true(lambda: ear.heard)
        middle.stop()
        await come_true(lambda: not bus.connected and "lost" in diary)
        for ask in (bus.publish("s", b"x"), bus.request("s", b"x", 5), bus.flush()):
            with pytest.raises(BusLost):
                await ask
        await asyncio.to_thread(middle.start)
        await come_true(lambda: bus.connected and "back" in diary)
        await bus.publish("s", b"after")
        await come_true(lambda: len(ear.heard) == 2)
        await bus.close()
        return [data for _, data, _ in ear.heard], diary

    assert live(story) == ([b"before", b"after"], ["lost", "back"])


def test_a_request_under_way_ends_when_the_bus_is_cut_off(middle: Middle) -> None:
    async def story() -> None:
        bus, ear = await middle.bus(), Ear()
        await bus.subscribe("silent", ear)
        asked = asyncio.create_task(bus.request("silent", b"", 50))
        await come_true(lambda: ear.heard)
        middle.stop()
        with pytest.raises(BusLost):
            await asked
        await bus.close()

    live(story)


def test_a_handler_at_work_is_not_cut_short_when_the_bus_is(middle: Middle) -> None:
    async def story() -> list[str]:
        bus, diary, go_on = await middle.bus(), [], asyncio.Event()

        async def work(subject: str, data: bytes, reply: str) -> None:
            diary.append("began")
            await go_on.wait()
            diary.append("finished")

        await bus.subscribe("work", work)
        await bus.publish("work", b"")
        await come_true(lambda: diary == ["began"])
        middle.stop()
        await come_true(lambda: not bus.connected)
        go_on.set()
        await come_true(lambda: len(diary) == 2)
        await bus.close()
        return diary

    assert live(story) == ["began", "finished"]


def test_a_closed_bus_says_and_hears_nothing_and_closes_twice(middle: Middle) -> None:
    async def story() -> list[Said]:
        bus, other, ear = await middle.bus(), await middle.bus(), Ear()
        await bus.subscribe("s", ear)
        await settled(bus)
        await bus.close()
        await bus.close()
        await other.publish("s", b"")
        await other.flush()
        with pytest.raises(BusLost):
            await bus.publish("s", b"")
        with pytest.raises(BusLost):
            await bus.subscribe("s", ear)
        assert not bus.connected
        await other.close()
        return ear.heard

    assert live(story) == []


class Basket:
    """A taker that remembers, call by call."""

    def __init__(self) -> None:
        self.taken: list[list[Said]] = []

    def __call__(self, said: list[Said]) -> None:
        self.taken.append(said)

    @property
    def heard(self) -> list[Said]:
        return [each for some in self.taken for each in some]


def test_what_is_collected_comes_in_order_and_together(middle: Middle) -> None:
    async def story() -> tuple[list[Said], int]:
        speaker, bus, basket = await middle.bus(), await middle.bus(), Basket()
        await bus.collect("a.*", basket)
        await settled(bus)
        for number in range(5000):
            await speaker.publish(f"a.{number % 7}", str(number).encode(), "r")
        await come_true(lambda: len(basket.heard) == 5000)
        await speaker.close()
        await bus.close()
        return basket.heard, len(basket.taken)

    heard, calls = live(story)

    assert heard == [(f"a.{number % 7}", str(number).encode(), "r") for number in range(5000)]
    assert calls < 1000


def test_a_taker_is_not_called_inside_the_publishers_call_and_may_speak(middle: Middle) -> None:
    async def story() -> list[str]:
        bus, diary, ear = await middle.bus(), [], Ear()
        asked: list[asyncio.Task[None]] = []

        def take(said: list[Said]) -> None:
            diary.append("taken")
            asked.append(asyncio.create_task(bus.publish("answer", said[0][1])))

        await bus.subscribe("answer", ear)
        await bus.collect("s", take)
        await bus.publish("s", b"x")
        diary.append("published")
        await come_true(lambda: ear.heard)
        await bus.close()
        return diary

    assert live(story) == ["published", "taken"]


def test_a_taker_that_fails_is_counted_and_takes_on(middle: Middle) -> None:
    async def story() -> tuple[list[bytes], int]:
        bus, heard = await middle.bus(), []

        def stumble(said: list[Said]) -> None:
            if said[0][1] == b"1":
                raise RuntimeError("no ones, please")
            heard.extend(data for _, data, _ in said)

        await bus.collect("numbers", stumble)
        for number in range(3):
            await bus.publish("numbers", str(number).encode())
            await bus.flush()
            await come_true(lambda sent=number: len(heard) + bus.failures == sent + 1)
        failures = bus.failures
        await bus.close()
        return heard, failures

    assert live(story) == ([b"0", b"2"], 1)


def test_what_is_collected_is_still_so_after_a_cut_and_not_after_its_end(middle: Middle) -> None:
    async def story() -> list[bytes]:
        bus, basket, other, backs = await middle.bus(), Basket(), Ear(), []
        bus.on_back(lambda: backs.append(1))
        collecting = await bus.collect("s", basket)
        await bus.publish("s", b"before")
        await come_true(lambda: basket.heard)
        middle.stop()
        await come_true(lambda: not bus.connected)
        await asyncio.to_thread(middle.start)
        await come_true(lambda: backs and bus.connected)
        await bus.publish("s", b"after")
        await come_true(lambda: len(basket.heard) == 2)
        await collecting.end()
        await bus.subscribe("s", other)
        await bus.publish("s", b"later")
        await come_true(lambda: other.heard)
        await bus.close()
        return [data for _, data, _ in basket.heard]

    assert live(story) == [b"before", b"after"]
