"""An sender that keeps what it is sent."""

import json
from typing import Any

from torchloom.server.stream.senders import Packet


class Sink:
    """One client that reads everything at once."""

    is_open = is_drained = True

    def __init__(self) -> None:
        self.packets: list[Packet] = []

    def send(self, packet: Packet) -> None:
        self.packets.append(packet)

    def drop(self, code: int, reason: str) -> None:
        self.is_open = False

    async def drained(self) -> None:
        pass

    def sent(self) -> list[dict[str, Any]]:
        """Return every message."""
        return [json.loads(each.text) for packet in self.packets for each in packet.messages]

    def numbers(self) -> list[int]:
        """Return the `seq` of every message."""
        return [each["seq"] for each in self.sent()]
