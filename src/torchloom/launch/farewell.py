"""The end of a run: every agent ends whatever is left on its node, says so, and may leave."""

import time
from collections.abc import Callable

from torchloom.launch import stores
from torchloom.launch.descendants import Share
from torchloom.launch.keeping import kill_share
from torchloom.launch.nodes import Nodes
from torchloom.launch.request import LaunchRequest

_PATIENCE = 15.0  # seconds beyond the grace in which agents must have cleared up


class Farewell:
    """Who has still to clear up, and how much of the ranks' output no log has."""

    def __init__(self, request: LaunchRequest, nodes: Nodes) -> None:
        self._request = request
        self._nodes = nodes
        self._uncleared: set[str] = set()
        self.lost_bytes = 0

    def say(self, grace: float, code: int, turn: Callable[[float], None]) -> None:
        """Have all agents end what is there, and take turns until they have or time is over."""
        self._uncleared = set(self._nodes.present) - set(self._nodes.missing())
        self._nodes.tell_all({"do": "end", "grace": grace, "code": code})
        deadline = time.monotonic() + grace + _PATIENCE
        while self._uncleared and time.monotonic() < deadline:
            turn(max(0.0, deadline - time.monotonic()))

    def cleared(self, name: str, lost: int) -> None:
        """A node has nothing left."""
        self.lost_bytes += lost
        self._uncleared.discard(name)
        self._nodes.let_go(name)

    def gone(self, name: str) -> None:
        """A node is lost: nobody will clear up there."""
        self._uncleared.discard(name)

    def sweep(self) -> None:
        """End what is left on this very host, where its agent was lost with its guard."""
        if not self._request.carrier and self._nodes.lost:
            kill_share(Share(self._request.app_id))
            stores.clear(Share(self._request.app_id))
