"""Two hundred agents, each with a connection of its own, and days on which hearing is hard."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from torchloom.bus.api import BusLost, NoReply
from torchloom.bus.nats.client import NatsBus
from torchloom.rules.liveness import LivenessLimits

from ...harness.async_wait import come_true
from ...harness.fake_agents import FakeAgent, register, rows
from ...harness.home import TIMEOUT
from ..test_main import WeaverProcess, weaver

__all__ = ["weaver"]
pytestmark = pytest.mark.process

MANY = 200
BEAT = 1.0
LIMITS = LivenessLimits()
LOST = "SELECT json_extract(facts, '$.agent') FROM events WHERE kind = 'agent_lost'"


class Beating(FakeAgent):
    """An agent that says hello until it is greeted, and beats, as long as it lives."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(NatsBus(url), f"node-{number}", f"n{number}")
        self.rank(register(number, world=MANY))
        self.beats = 0
        self._living: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.bus.start()
        self.bus.on_back(self._forgotten)
        await super().start()
        self._living = [asyncio.create_task(work()) for work in (self._beat, self._introduce)]

    async def die(self) -> None:
        """Be gone, without a word."""
        for task in self._living:
            task.cancel()
        await self.bus.close()

    def _forgotten(self) -> None:
        self.epoch = 0

    async def _beat(self) -> None:
        await asyncio.sleep(random.random() * BEAT)
        while True:
            with contextlib.suppress(BusLost):
                await self.beat()
                self.beats += 1
            await asyncio.sleep(BEAT)

    async def _introduce(self) -> None:
        while True:
            with contextlib.suppress(BusLost, NoReply):
                if not self.epoch:
                    await self.hello()
            await asyncio.sleep(random.random() * BEAT)


@contextlib.asynccontextmanager
async def crowd_of(weaver: WeaverProcess) -> AsyncIterator[list[Beating]]:
    """Have agents whom the weaver has greeted, until the end."""
    agents = [Beating(weaver.server.url, number) for number in range(MANY)]
    for agent in agents:
        await agent.start()
    try:
        await all_greeted(agents)
        yield agents
    finally:
        for agent in agents:
            await agent.die()


async def all_greeted(agents: list[Beating]) -> None:
    await come_true(lambda: all(agent.epoch for agent in agents), TIMEOUT)


async def beaten(agents: list[Beating], times: int) -> None:
    """Come back when each of them has beaten so many times more."""
    wanted = [(agent, agent.beats + times) for agent in agents]
    await come_true(lambda: all(agent.beats >= count for agent, count in wanted), TIMEOUT)


def lost(weaver: WeaverProcess) -> set[str]:
    return {agent for (agent,) in rows(weaver.home / "plane", LOST)}


async def all_lost(weaver: WeaverProcess, agents: list[Beating]) -> None:
    await come_true(lambda: len(lost(weaver)) >= len(agents), TIMEOUT)


async def broker_is_away(weaver: WeaverProcess) -> None:
    """Kill the broker and start it again when everybody has been silent for too long."""
    weaver.server.stop()
    await asyncio.sleep(2 * LIMITS.silence)
    await asyncio.to_thread(weaver.server.start)


async def weaver_is_stopped(weaver: WeaverProcess) -> None:
    """Let the weaver stand still meanwhile: what was said to it then is lost with the broker."""
    weaver.signal(signal.SIGSTOP)
    await broker_is_away(weaver)
    weaver.signal(signal.SIGCONT)


async def silence_counts_again(agents: list[Beating]) -> None:
    await all_greeted(agents)
    await beaten(agents, round((LIMITS.comeback + LIMITS.silence) / BEAT) + 2)


@pytest.mark.parametrize("bad_day", [broker_is_away, weaver_is_stopped])
def test_after_a_bad_day_exactly_those_are_lost_who_died(
    weaver: WeaverProcess, bad_day: Callable[[WeaverProcess], Awaitable[None]]
) -> None:
    async def scenario() -> set[str]:
        async with crowd_of(weaver) as agents:
            dying, others = agents[:60], agents[60:]
            await bad_day(weaver)
            await silence_counts_again(agents)
            assert lost(weaver) == set()

            for agent in dying:
                await agent.die()
            await all_lost(weaver, dying)
            await beaten(others, 3)
            return {agent.name for agent in dying}

    assert asyncio.run(scenario()) == lost(weaver)
