"""Have an agent on every node that a run needs; those that do not come in time are lost."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from torchloom.launch.carriers import Carriers
from torchloom.launch.link import nonce
from torchloom.launch.nodes import Nodes
from torchloom.launch.request import LaunchRequest


class Gathering:
    """The nodes of a run before it begins; `meeting` is where launches that met call in."""

    def __init__(
        self,
        request: LaunchRequest,
        nodes: Nodes,
        carriers: Carriers,
        meeting: socket.socket | None,
    ) -> None:
        self._request = request
        self._nodes = nodes
        self._carriers = carriers
        self._meeting = meeting
        self._marker: Path | None = None

    @property
    def has_met(self) -> bool:
        """Tell whether each node was launched by itself."""
        return self._meeting is not None

    @property
    def marker(self) -> str:
        """A file in the log folder: a node that does not see it sends its logs here."""
        return str(self._marker) if self._marker else ""

    def call(self) -> None:
        """Have agents brought to all nodes, and let them in."""
        for path, text in self._request.files:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        if self._meeting is not None:
            self._mark_logs()
            self._nodes.take_calls(self._meeting)
            self._nodes.lies_at(self._nodes.names[0], self._meeting.getsockname()[0])
        elif self._request.carrier:
            self._mark_logs()
            self._nodes.take_calls(self._carriers.start())

    def wait(self, is_done: Callable[[], bool], turn: Callable[[float], None]) -> None:
        """Take turns until that is so; who has not come when time is over is given up."""
        began = time.monotonic()
        while not is_done():
            left = began + self._limit() - time.monotonic()
            if left > 0:
                turn(left)
                continue
            for name in self._nodes.missing():
                why = self._carriers.last_words(name) or "nothing was heard of it"
                self._nodes.give_up(name, f"no agent in {time.monotonic() - began:.0f} s: {why}")

    def close(self) -> None:
        """Leave no mark."""
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)

    def _limit(self) -> float:
        """Return how long nodes may take to come; less once there are as many as must be."""
        least = min(role.min_group or len(role.replicas) for role in self._request.roles)
        there = len(self._nodes.present) - len(self._nodes.missing())
        enough = self._request.last_call and there >= least
        return self._request.last_call if enough else self._request.join_limit

    def _mark_logs(self) -> None:
        folder = Path(self._request.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._marker = folder / f".seen-by-{nonce()}"
        self._marker.touch()
