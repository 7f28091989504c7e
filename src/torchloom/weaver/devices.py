"""The devices of all nodes and who uses them: the device map of the rules, stored with its version.

A failed device is known by its uuid, so whom it concerns is known in the moment it fails.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from torchloom.bus import messages
from torchloom.rules.drmap import DeviceState, DRMap, Health, Process, ProcessId
from torchloom.weaver.journal import Journal
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Device, Fact, MapEntry, Rank

VERSION = "drmap_version"


class Devices:
    """Devices by uuid, and the map between devices and processes."""

    def __init__(
        self,
        state: StateStore,
        ranks: Iterable[Rank],
        journal: Journal,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._journal = journal
        self._now = now
        self._devices = {device.uuid: device for device in state.find(Device)}
        self._introduced: set[str] = set()  # by an agent of the node that has them
        self.map = self._stored(ranks)

    def all(self) -> list[Device]:
        return sorted(self._devices.values(), key=lambda d: (d.node, d.kind, d.index, d.uuid))

    def get(self, uuid: str) -> Device | None:
        return self._devices.get(uuid)

    def processes(self, device: str) -> list[str]:
        """Return who uses a device."""
        return [str(process) for process in sorted(self.map.processes_on(device))]

    def seen(self, node: str, devices: Iterable[messages.Device]) -> None:
        """Take in the devices that an agent has on its node."""
        for said in devices:
            self._introduced.add(said.uuid)
            known = self._devices.get(said.uuid)
            base = known or Device(said.uuid, changed_at=self._now())
            index, memory = said.index, said.memory
            device = replace(base, node=node, kind=said.kind, index=index, memory=memory)
            if device != known:
                self._put(device)

    def use(self, *ranks: Rank) -> None:
        """Take in which devices ranks use: these, and no others."""
        processes = [_process(rank) for rank in ranks]
        self._change(self.map.replace_process(*processes), processes)
        for rank in ranks:
            for uuid in rank.devices:
                if uuid not in self._devices:  # nobody has introduced it
                    kind, index = "cpu" if "/cpu/" in uuid else "", rank.local_rank
                    self._put(Device(uuid, rank.node, kind, index, changed_at=self._now()))

    def leave(self, *ranks: Rank) -> None:
        """Take processes that are gone out of the map."""
        processes = [_process(rank) for rank in ranks]
        self._change(self.map.unregister(*(process.id for process in processes)), processes)

    def forget(self, *ranks: Rank) -> None:
        """Take processes out of the map for good, and the devices that they alone reported.

        One stays that an agent has introduced, or whose state was set by hand.
        """
        self.leave(*ranks)
        for uuid in {uuid for rank in ranks for uuid in rank.devices} - self._introduced:
            device = self._devices.get(uuid)
            if device is not None and not device.source and not self.map.processes_on(uuid):
                self._state.remove(Device, uuid=uuid)
                del self._devices[uuid]

    def mark(self, uuid: str, state: DeviceState, source: str, reason: str) -> None:
        """Store what somebody says of a device's health; one that is not known becomes so."""
        known = self._devices.get(uuid) or Device(uuid)
        device = replace(known, state=state.value, source=source, reason=reason)
        device = replace(device, changed_at=self._now())
        with self._state.together():
            self._put(device)
            self._change(self.map.mark(uuid, state, reason), ())
            facts = {"device": uuid, "before": known.state, "processes": self.processes(uuid)}
            self._journal.note(f"device_{state}", author=source, reason=reason, facts=facts)

    def _stored(self, ranks: Iterable[Rank]) -> DRMap:
        rows = {rank.process_id: rank for rank in ranks}
        devices: dict[str, set[str]] = {}
        for entry in self._state.find(MapEntry):
            devices.setdefault(entry.process, set()).add(entry.device)
        known = [
            replace(_process(rows[name]), devices=frozenset(uuids))
            for name, uuids in devices.items()
            if name in rows
        ]
        health = {
            device.uuid: Health(DeviceState(device.state), device.reason)
            for device in self._devices.values()
            if device.state != DeviceState.HEALTHY
        }
        version = self._state.one(Fact, name=VERSION)
        rebuilt = DRMap().replace_process(*known)
        return replace(rebuilt, health=health, version=version.value if version else 0)

    def _put(self, device: Device) -> None:
        self._state.put(device)
        self._devices[device.uuid] = device

    def _change(self, after: DRMap, changed: Iterable[Process]) -> None:
        """Store of a new map what is not in the old one; only these processes differ."""
        before, version = self.map, after.version
        if version == before.version:
            return
        names = [process.id for process in changed]
        old, new = _pairs(before, names), _pairs(after, names)
        with self._state.together():
            for uuid, process in old - new:
                self._state.remove(MapEntry, device=uuid, process=process)
            added = [MapEntry(uuid, process, version) for uuid, process in sorted(new - old)]
            self._state.put(*added, Fact(VERSION, version))
        self.map = after


def _process(rank: Rank) -> Process:
    name = ProcessId(rank.job, rank.role, rank.rank)
    return Process(name, frozenset(rank.devices), rank.replica, rank.node)


def _pairs(drmap: DRMap, names: Iterable[ProcessId]) -> set[tuple[str, str]]:
    """Return the entries of these processes."""
    found = [(name, drmap.processes.get(name)) for name in names]
    return {(uuid, str(name)) for name, one in found if one for uuid in one.devices}
