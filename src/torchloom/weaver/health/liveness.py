"""Watch which agents are silent; only the rules conclude what that means."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from itertools import islice

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost
from torchloom.rules import liveness
from torchloom.weaver.health.roster import Roster

LOOK = 0.1  # seconds between two looks at who was silent
_TOGETHER = 50  # agents that are noted to be lost in one transaction
ECHO = subjects.heartbeat("weaver")  # our own words come back to us among the beats, in their turn
_SHARE = 0.25  # of the time that this takes, in which others are heard
_AGAIN = 5.0  # seconds after which a word that has not come back is held to be lost


class AgentLiveness:
    """Feed `rules/liveness`, and note what it says."""

    def __init__(
        self,
        bus: Bus,
        roster: Roster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._roster = roster
        self._clock = clock
        self._nodes = liveness.State()
        self._heard = {agent.id for agent in roster.agents() if agent.state == "up"}
        self._echo = False
        self._awaited: float | None = None  # since when our own word is on its way
        self._losing: dict[str, str] = {}  # why, by agent: what is not noted yet
        self._lost_some = asyncio.Event()
        if self._heard:
            self.interrupted()  # who was there before us has time to come back

    def interrupted(self) -> None:
        """Our connection broke or came back: nobody's silence counts for a while."""
        self._nodes, _ = liveness.step(self._nodes, liveness.BusInterrupted())
        self._awaited = None

    def heard(self, agent: str) -> None:
        """An agent said something."""
        self._heard.add(agent)

    def left(self, agent: str) -> None:
        """An agent said that it leaves."""
        self._heard.discard(agent)
        self._losing.pop(agent, None)
        self._nodes, _ = liveness.step(self._nodes, liveness.AgentLeft(agent))

    def echo(self) -> None:
        """Our own word came back, and what others said before it has been heard."""
        self._echo, self._awaited = True, None

    async def look(self) -> None:
        """One look at who was silent. `run` of the weaver repeats it.

        While our own word is on its way, so may be others': with much to do we hear them late,
        and nobody is silent for that.
        """
        now = self._clock()
        if self._awaited is not None:
            if now - self._awaited > _AGAIN:
                await self._call(now)
            return
        tick = liveness.LivenessTick(now, frozenset(self._heard), self._echo)
        self._heard.clear()
        self._echo = False
        self._nodes, effects = liveness.step(self._nodes, tick)
        for effect in effects:
            if isinstance(effect, liveness.NodeSilent):
                self._losing[effect.node] = f"silent for {effect.silent_for:.1f} s"
                self._lost_some.set()
            else:
                self._losing.pop(effect.node, None)
        await self._call(now)

    async def run(self) -> None:
        """Note who is lost, until cancelled: a rack's worth in one go, the living are heard in
        between, and looked at all the while."""
        while True:
            await self._lost_some.wait()
            self._lost_some.clear()
            while self._losing:
                began, some = self._clock(), list(islice(self._losing, _TOGETHER))
                self._roster.agents_lost({agent: self._losing.pop(agent) for agent in some})
                await asyncio.sleep(_SHARE * (self._clock() - began))

    async def _call(self, now: float) -> None:
        """Say a word that comes back to us; without a bus none does."""
        with contextlib.suppress(BusLost):
            self._awaited = now  # it may be back before we are
            await self._bus.publish(ECHO, b"")
            return
        self._awaited = None
