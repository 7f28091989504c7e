"""Watch the GPUs of a node and tell when one is lost or to be left; `rules/xid` knows which."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Literal

from torchloom.bus.messages import DeviceEvent, Head
from torchloom.launch.relay.gpus import Gpus, Health, Xid
from torchloom.rules.xid import Blame, meaning_of, xid_reason

SOURCE = "nvml"
_WAIT = 1.0  # seconds that one look for errors takes, when there are none
_COUNTERS = 30  # looks for errors between two at the counters
_log = logging.getLogger(__name__)

State = Literal["failed", "healthy", "draining"]
Say = Callable[[DeviceEvent], Awaitable[bool]]  # whether somebody was there to hear it


class HealthWatch:
    """Says each thing once; whether a device is well again a person says."""

    def __init__(self, head: Head, gpus: Gpus, say: Say) -> None:
        self._head = head
        self._gpus = gpus
        self._say = say
        self._uuids = [device.uuid for device in gpus.devices()]
        self._said: dict[str, State] = {}
        self._owed: list[DeviceEvent] = []
        self.facts: dict[str, dict[str, Any]] = {}  # by uuid, for whoever looks

    async def run(self) -> None:
        """Watch until cancelled; a library that fails is let be, and said so."""
        try:
            while True:
                await self.look_at_counters()
                for _ in range(_COUNTERS):
                    await self.look_for_errors()
        except Exception as error:  # the driver's library raises classes of its own
            _log.error("GPUs are no longer watched: %s", error)

    async def look_for_errors(self, seconds: float = _WAIT) -> None:
        """Wait for one error, and tell what it means."""
        found = await asyncio.to_thread(self._gpus.wait, seconds)
        if found is not None:
            self._tell_error(found)
        await self._say_owed()

    async def look_at_counters(self) -> None:
        """Ask every GPU once how it is."""
        for uuid in self._uuids:
            found = await asyncio.to_thread(self._gpus.health, uuid)
            self.facts[uuid] = asdict(found)
            state, reason = judge(found)
            if state is not None:
                self._tell(uuid, state, reason)
        await self._say_owed()

    def _tell_error(self, found: Xid) -> None:
        meaning = meaning_of(found.number)
        _log.warning("%s: Xid %d, %s", found.uuid, found.number, meaning.words)
        if meaning.blame is Blame.LOST:
            self._tell(found.uuid, "failed", xid_reason(found.number))
        elif meaning.blame is Blame.DEGRADED:
            self._tell(found.uuid, "draining", xid_reason(found.number))

    def _tell(self, uuid: str, state: State, reason: str) -> None:
        """Have it said how a device is, unless as much or worse was."""
        if self._said.get(uuid) not in (state, "failed"):
            self._said[uuid] = state
            self._owed.append(DeviceEvent(self._head, uuid, state, SOURCE, reason))

    async def _say_owed(self) -> None:
        while self._owed and await self._say(self._owed[0]):
            self._owed.pop(0)


def judge(found: Health) -> tuple[State | None, str]:
    """Return what counters mean for a device, and why; heat alone slows it and no more."""
    if found.is_lost:
        return "failed", "gpu_is_lost"
    if found.remap_failed:
        return "draining", "row_remap_failed"
    if found.remap_pending:
        return "draining", "row_remap_pending"
    return None, ""
