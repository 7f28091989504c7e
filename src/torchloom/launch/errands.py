"""What a node's agent was asked to do, in its order; what needs a keeper waits for one."""

import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.launch.contract import rank_environment
from torchloom.launch.frames import Message
from torchloom.launch.keeping import KeeperLink
from torchloom.launch.orders import ReplicaOrder
from torchloom.rules.replica import ReplicaKey


class Errands:
    """The orders of a launch process that were not carried out yet.

    A node may have its own `argv` and `cwd`: they are said instead of the launch process' words.
    """

    def __init__(
        self,
        node: str,
        argv: Sequence[str],
        cwd: str,
        keeper: KeeperLink,
        act: Callable[[Message], None],
    ) -> None:
        self._node = node
        self._argv = tuple(argv)
        self._cwd = cwd
        self._inherited = settings.environment()
        self._keeper = keeper
        self._act = act
        self._todo: deque[Message] = deque()
        self.orphan_limit = 0.0

    @property
    def pending(self) -> bool:
        """Tell whether there are some."""
        return bool(self._todo)

    def add(self, message: Message) -> None:
        self._todo.append(message)
        self.work()

    def work(self) -> None:
        """Do what can be done."""
        while self._todo:
            message = self._todo[0]
            if "order" in message and not self._has_keeper(message["order"]):
                return
            self._todo.popleft()
            self._act(message)

    def take_back(self, key: ReplicaKey) -> list[Message]:
        """Forget starts that still wait for their keeper; return the ends of their ranks."""
        taken: list[Message] = []
        for message in [each for each in self._todo if each["do"] == "start"]:
            order = self.order(message["order"])
            if order.key == key:
                self._todo.remove(message)
                taken.append({"say": "exited", "ranks": _never_begun(order)})
        return taken

    def clear(self) -> None:
        self._todo.clear()

    def order(self, data: Mapping[str, Any]) -> ReplicaOrder:
        """Return an order in the words of this host, where it has its own."""
        order = ReplicaOrder.from_dict(data)
        if not self._argv:
            return order
        return replace(order, argv=self._argv, cwd=self._cwd, env={})

    def environment(
        self, order: ReplicaOrder, variables: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return what processes of a replica have in common, and what one of them has beside."""
        return rank_environment(self._inherited, order, variables or {}, self._node, Path(), {})

    def _has_keeper(self, data: Mapping[str, Any]) -> bool:
        order = self.order(data)
        env = self.environment(order, order.ranks[0].variables)
        return self._keeper.prepare(order, env, self.orphan_limit)


def _never_begun(order: ReplicaOrder) -> list[dict[str, Any]]:
    """Return the ends of ranks that ended before they began."""
    facts = {"role": order.role, "index": order.index, "attempt": order.attempt}
    facts |= {"life": order.life, "code": -int(signal.SIGTERM)}
    return [{**facts, "local_rank": rank.local_rank} for rank in order.ranks]
