"""What a page is told on its socket: plain JSON, through the outlet that all streams have."""

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from torchloom.errors import LoomError
from torchloom.server.drafts import Draft
from torchloom.server.frames import text_frame
from torchloom.server.outlets import Message, Outlet, Packet
from torchloom.server.problems import explained


class Voice:
    """One page's ear. Sending waits for nobody; whoever has much to say waits for `drained`."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet

    @property
    def is_open(self) -> bool:
        return self.outlet.is_open

    def say(self, body: Mapping[str, Any]) -> None:
        """Send one message; what JSON has no number for (NaN, infinity) is null."""
        draft = Draft("", "topic", -1, time.time(), body, {})
        self.outlet.send(Packet([Message(draft, text_frame(msgspec.json.encode(body)))]))

    def whole(self, name: str, cursor: str, data: Any) -> None:
        """Say all there is."""
        self.say({"id": name, "kind": "snapshot", "cursor": cursor, "data": data})

    def more(self, name: str, cursor: str, data: Any) -> None:
        """Say what is new."""
        self.say({"id": name, "kind": "delta", "cursor": cursor, "data": data})

    def refuse(self, name: str, error: LoomError) -> None:
        """Say why something is not followed, or not any more."""
        problem = json.loads(bytes(explained(error).body))
        self.say({"id": name, "kind": "error", "problem": problem})
