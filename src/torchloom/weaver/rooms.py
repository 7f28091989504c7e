"""Which nodes there are, and what each has for jobs: what agents say, less what is not well."""

import asyncio
from collections.abc import Iterable

from torchloom.bus.messages import Hello
from torchloom.rules import queue
from torchloom.rules.placement import Room
from torchloom.weaver.devices import Devices
from torchloom.weaver.queueing import Offer
from torchloom.weaver.turns import Turns

GATHERING = 10.0  # seconds in which nodes come to a weaver that has just begun


class Rooms:
    """Tells the queue of nodes that come, change and go."""

    def __init__(
        self, turns: Turns, devices: Devices, expected: Iterable[str], gathering: float
    ) -> None:
        self._turns = turns
        self._devices = devices
        self._offers: dict[str, Offer] = {}
        self._missing = set(expected)  # who was there before this weaver began
        self._gathering = gathering
        self._timer: asyncio.TimerHandle | None = None
        self.gathered = asyncio.Event()  # whoever was expected is there, or is not awaited longer

    def start(self) -> None:
        """Wait for nodes, but not for ever."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._gathering, self.gathered.set)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def node(self, said: Hello) -> None:
        """Take in what an agent has for jobs; that of a job has nothing."""
        self._missing.discard(said.agent)
        if said.cpus:
            self._offers[said.agent] = Offer.of(said)
            self._look_at(said.agent)
        self._look_who_is_missing()

    def gone(self, agent: str) -> None:
        """Take in that an agent is silent or has left: nothing is placed there any more."""
        self._missing.discard(agent)
        self._offers.pop(agent, None)
        if agent in self._turns.queue.nodes:
            self._turns.take(queue.NodeLost(agent))
        self._look_who_is_missing()

    def look(self) -> None:
        """Look whether the health of devices has changed what nodes have."""
        for agent in list(self._offers):
            self._look_at(agent)

    def all(self) -> dict[str, tuple[Offer, Room]]:
        """Return what each node has, and what of it is free."""
        free = self._turns.queue.free()
        return {name: (self._offers[name], free[name]) for name in self._turns.queue.nodes}

    def _look_at(self, agent: str) -> None:
        room = self._offers[agent].room(self._devices)
        if self._turns.queue.nodes.get(agent) != room:
            self._turns.take(queue.NodeUp(agent, room))

    def _look_who_is_missing(self) -> None:
        if self._turns.queue.nodes and not self._missing:
            self.gathered.set()
