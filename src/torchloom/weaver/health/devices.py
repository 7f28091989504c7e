"""The devices of all nodes and the ranks that use them: the device map of the rules, stored."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchloom.messages import plane
from torchloom.rules.devices import DeviceHealth, DeviceState, DRMap, MappedRank, RankId
from torchloom.weaver.events import Journal
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import DeviceRow, Fact, MapEntry, RankProcessRow

_UUID = ("device_uuid", "UUID", "uuid", "gpu_uuid", "device")  # labels that may name a device
_STATE = "loom_state"  # a label that gives the state an alert means: failed or draining
_WORDS = ("summary", "description", "message")
_MOST = 1000  # alerts of one message
VERSION = "drmap_version"


class NoAlerts(ValueError):
    """The bytes are not what Alertmanager sends."""


@dataclass(frozen=True, slots=True)
class DeviceAlert:
    """What one alert reports on one device."""

    device: str
    state: DeviceState
    source: str
    reason: str


def read_alerts(data: bytes) -> list[DeviceAlert]:
    """Return the alerts about devices; others are ignored."""
    try:
        message = json.loads(data)
        alerts = message["alerts"][:_MOST]
        return [found for alert in alerts for found in _read(alert)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NoAlerts(str(error)) from error


def _read(alert: Mapping[str, Any]) -> Iterator[DeviceAlert]:
    labels = alert["labels"]
    device = next((labels[name] for name in _UUID if labels.get(name)), None)
    if not isinstance(device, str):
        return
    state = _state(alert.get("status"), labels.get(_STATE))
    notes = alert.get("annotations") or {}
    words = next((notes[name] for name in _WORDS if notes.get(name)), "")
    name = str(labels.get("alertname") or "alert")
    yield DeviceAlert(device, state, "alertmanager", f"{name}: {words}" if words else name)


def _state(status: Any, wanted: Any) -> DeviceState:
    if status == "resolved":
        return DeviceState.HEALTHY
    if wanted == DeviceState.DRAINING:
        return DeviceState.DRAINING
    return DeviceState.FAILED


class DeviceMap:
    """Devices by uuid, and the map between devices and processes."""

    def __init__(
        self,
        state: StateStore,
        ranks: Iterable[RankProcessRow],
        journal: Journal,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._journal = journal
        self._now = now
        self._devices = {device.uuid: device for device in state.find(DeviceRow)}
        self._introduced: set[str] = set()  # reported by an agent of their node
        self.map = self._stored(ranks)

    def all(self) -> list[DeviceRow]:
        return sorted(self._devices.values(), key=lambda d: (d.node, d.kind, d.index, d.uuid))

    def get(self, uuid: str) -> DeviceRow | None:
        return self._devices.get(uuid)

    def processes(self, device: str) -> list[str]:
        """Return the ranks that use a device."""
        return [str(process) for process in sorted(self.map.processes_on(device))]

    def seen(self, node: str, devices: Iterable[plane.Device]) -> None:
        """Store the devices that an agent reports of its node."""
        for reported in devices:
            self._introduced.add(reported.uuid)
            known = self._devices.get(reported.uuid)
            base = known or DeviceRow(reported.uuid, changed_at=self._now())
            index, memory = reported.index, reported.memory
            device = replace(base, node=node, kind=reported.kind, index=index, memory=memory)
            if device != known:
                self._put(device)

    def use(self, *ranks: RankProcessRow) -> None:
        """Store which devices ranks use: these, and no others."""
        processes = [_process(rank) for rank in ranks]
        self._change(self.map.replace_process(*processes), processes)
        for rank in ranks:
            for uuid in rank.devices:
                if uuid not in self._devices:  # no agent has reported it
                    kind, index = "cpu" if "/cpu/" in uuid else "", rank.local_rank
                    self._put(DeviceRow(uuid, rank.node, kind, index, changed_at=self._now()))

    def leave(self, *ranks: RankProcessRow) -> None:
        """Remove ended processes from the map."""
        processes = [_process(rank) for rank in ranks]
        self._change(self.map.unregister(*(process.id for process in processes)), processes)

    def forget(self, *ranks: RankProcessRow) -> None:
        """Remove processes from the map, with the devices that they alone reported.

        A device stays that an agent has reported, or whose state was set by a user.
        """
        self.leave(*ranks)
        for uuid in {uuid for rank in ranks for uuid in rank.devices} - self._introduced:
            device = self._devices.get(uuid)
            if device is not None and not device.source and not self.map.processes_on(uuid):
                self._state.remove(DeviceRow, uuid=uuid)
                del self._devices[uuid]

    def mark(self, uuid: str, state: DeviceState, source: str, reason: str) -> None:
        """Store the health of a device; an unknown device is added."""
        known = self._devices.get(uuid) or DeviceRow(uuid)
        device = replace(known, state=state.value, source=source, reason=reason)
        device = replace(device, changed_at=self._now())
        with self._state.together():
            self._put(device)
            self._change(self.map.mark(uuid, state, reason), ())
            facts = {"device": uuid, "before": known.state, "processes": self.processes(uuid)}
            self._journal.note(f"device_{state}", author=source, reason=reason, facts=facts)

    def _stored(self, ranks: Iterable[RankProcessRow]) -> DRMap:
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
            device.uuid: DeviceHealth(DeviceState(device.state), device.reason)
            for device in self._devices.values()
            if device.state != DeviceState.HEALTHY
        }
        version = self._state.one(Fact, name=VERSION)
        rebuilt = DRMap().replace_process(*known)
        return replace(rebuilt, health=health, version=version.value if version else 0)

    def _put(self, device: DeviceRow) -> None:
        self._state.put(device)
        self._devices[device.uuid] = device

    def _change(self, after: DRMap, changed: Iterable[MappedRank]) -> None:
        """Store how a new map differs from the old one, which it does in these processes."""
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


def _process(rank: RankProcessRow) -> MappedRank:
    name = RankId(rank.job, rank.role, rank.rank)
    return MappedRank(name, frozenset(rank.devices), rank.replica, rank.node)


def _pairs(drmap: DRMap, names: Iterable[RankId]) -> set[tuple[str, str]]:
    """Return the entries of these processes."""
    found = [(name, drmap.processes.get(name)) for name in names]
    return {(uuid, str(name)) for name, one in found if one for uuid in one.devices}
