"""Where the ranks of a node speak to the plane: at its own agent, or at a relay that we keep."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchloom import settings
from torchloom.launch import link
from torchloom.launch.descendants import Share
from torchloom.launch.sockets import UPLINK

if TYPE_CHECKING:  # a node of the plane's needs none
    from torchloom.launch.noderelay import NodeRelay


class Uplink:
    """One job's way to the plane from this node."""

    def __init__(self, share: Share, launcher: link.Address) -> None:
        self.address = str(settings.plane_dir() / UPLINK)
        self._share = share
        self._launcher = launcher
        self._relay: NodeRelay | None = None

    @property
    def has_relay(self) -> bool:
        """Tell whether a relay of ours is there."""
        return self._relay is not None and self._relay.is_there

    def settle(self, address: str) -> None:
        """Take notice of where ranks speak to the plane; on another host it is through our own."""
        if address:
            self.address = address
        elif self._relay is None:
            from torchloom.launch.noderelay import NodeRelay

            self._relay = NodeRelay(self._share, self._launcher)
            self.address = str(self._relay.address)

    def start(self) -> None:
        """Have the relay that ranks need, if they do."""
        if self._relay is not None:
            self._relay.start()

    def look(self, ended: Sequence[tuple[int, int]] = ()) -> str:
        """Look after the relay, given children that ended; return what there is to say of it."""
        return self._relay.look(ended) if self._relay is not None else ""

    def waits(self) -> list[float]:
        """Return in how many seconds there is something to do, if there is."""
        again = self._relay.patience if self._relay is not None else None
        return [] if again is None else [again]

    def leave(self, at_once: bool) -> float:
        """Have the relay leave for good; return how long that may take."""
        return self._relay.leave(at_once) if self._relay is not None else 0.0
