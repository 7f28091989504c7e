"""Know which processes stand on which device, and so whom a device's failure concerns.

Many to many: a process may span devices, a device may serve several processes. A map is a value:
each change gives a new one with the next version, and what changes nothing gives the same one. A
change copies the map, so whoever hears from many agents at once registers all of them in one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """The name of a rank that outlives its processes: JOB/ROLE/RANK."""

    job: str
    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.job}/{self.role}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "ProcessId":
        """Read JOB/ROLE/RANK; raises ValueError for anything else."""
        job, role, rank = text.rsplit("/", 2)
        return cls(job, role, int(rank))


@dataclass(frozen=True, slots=True, order=True)
class GroupId:
    """A replica group of a job: the ranks that hold one full copy of the model together."""

    job: str
    name: str

    def __str__(self) -> str:
        return f"{self.job}/{self.name}"


@dataclass(frozen=True, slots=True)
class Process:
    """One rank as it registers. Without the name of a replica group it is one by itself."""

    id: ProcessId
    devices: frozenset[str]
    replica: str = ""
    node: str = ""

    @property
    def group(self) -> GroupId:
        return GroupId(self.id.job, self.replica or f"{self.id.role}/{self.id.rank}")


class DeviceState(StrEnum):
    """Whether a device may be used."""

    HEALTHY = "healthy"
    DRAINING = "draining"  # what runs there may end; nothing new starts there
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a device, and who says so."""

    state: DeviceState = DeviceState.HEALTHY
    reason: str = ""


HEALTHY = Health()


@dataclass(frozen=True, slots=True)
class DRMap:
    """The device-replica map: `d in pid_to_devices[p]` exactly when `p in device_to_pid[d]`."""

    processes: Mapping[ProcessId, Process] = field(default_factory=dict)
    device_to_pid: Mapping[str, frozenset[ProcessId]] = field(default_factory=dict)
    health: Mapping[str, Health] = field(default_factory=dict)  # of devices that are not healthy
    version: int = 0

    @property
    def pid_to_devices(self) -> dict[ProcessId, frozenset[str]]:
        """Return the devices of every process."""
        return {name: process.devices for name, process in self.processes.items()}

    # What it answers.

    def processes_on(self, *devices: str) -> frozenset[ProcessId]:
        """Return the processes that use any of these devices; nobody uses an unknown one."""
        nobody: frozenset[ProcessId] = frozenset()
        return nobody.union(*(self.device_to_pid.get(device, nobody) for device in devices))

    def processes_at(self, node: str) -> frozenset[ProcessId]:
        """Return the processes of a node."""
        return frozenset(p.id for p in self.processes.values() if p.node == node)

    def groups_of(self, processes: Iterable[ProcessId]) -> frozenset[GroupId]:
        """Return the replica groups that lose a member with these processes."""
        return frozenset(self.processes[p].group for p in processes if p in self.processes)

    def members(self, *groups: GroupId) -> frozenset[ProcessId]:
        """Return all processes of these replica groups."""
        wanted, replicas = frozenset(groups), {group.name for group in groups}
        return frozenset(
            p.id
            for p in self.processes.values()
            if (not p.replica or p.replica in replicas) and p.group in wanted
        )

    def knows(self, device: str) -> bool:
        return device in self.device_to_pid or device in self.health

    def health_of(self, device: str) -> Health:
        return self.health.get(device, HEALTHY)

    # How it changes.

    def register(self, *processes: Process) -> "DRMap":
        """Add processes, and devices to those that are there; once or twice is the same."""
        joined = []
        for new in processes:
            old = self.processes.get(new.id)
            joined.append(_joined(old, new) if old else new)
        return self.replace_process(*joined)

    def replace_process(self, *processes: Process) -> "DRMap":
        """Have each process on these devices and no others."""
        new = {p.id: p for p in processes if self.processes.get(p.id) != p}
        return self._with(new) if new else self

    def unregister(self, *processes: ProcessId) -> "DRMap":
        """Forget processes; a device that nobody uses is forgotten with them."""
        gone = {name: None for name in processes if name in self.processes}
        return self._with(gone) if gone else self

    def mark(self, device: str, state: DeviceState, reason: str = "") -> "DRMap":
        """Note a device's state; of an unknown device too, for it may be used later."""
        health = HEALTHY if state is DeviceState.HEALTHY else Health(state, reason)
        if self.health_of(device) == health:
            return self
        others = {name: was for name, was in self.health.items() if name != device}
        marked = others if health == HEALTHY else {**others, device: health}
        return replace(self, health=marked, version=self.version + 1)

    def _with(self, changes: Mapping[ProcessId, Process | None]) -> "DRMap":
        processes, users = dict(self.processes), dict(self.device_to_pid)
        for name, process in changes.items():
            old = processes.pop(name, None)
            for device in old.devices if old else ():
                users[device] -= {name}
            if process is not None:
                processes[name] = process
                for device in process.devices:
                    users[device] = users.get(device, frozenset()) | {name}
            for device in old.devices if old else ():
                if not users[device]:
                    del users[device]
        return DRMap(processes, users, self.health, self.version + 1)


def _joined(old: Process, new: Process) -> Process:
    return Process(
        new.id, old.devices | new.devices, new.replica or old.replica, new.node or old.node
    )


def to_dict(drmap: DRMap) -> dict[str, Any]:
    """Return the map as plain values, the same ones for equal maps."""
    processes = sorted(drmap.processes.values(), key=lambda process: process.id)
    return {
        "version": drmap.version,
        "processes": {
            str(p.id): {"devices": sorted(p.devices), "replica": p.replica, "node": p.node}
            for p in processes
        },
        "health": {
            device: {"state": health.state.value, "reason": health.reason}
            for device, health in sorted(drmap.health.items())
        },
    }


def from_dict(stored: Mapping[str, Any]) -> DRMap:
    """Read back what `to_dict` gave."""
    processes = (
        Process(ProcessId.parse(name), frozenset(p["devices"]), p["replica"], p["node"])
        for name, p in stored["processes"].items()
    )
    health = {
        device: Health(DeviceState(was["state"]), was["reason"])
        for device, was in stored["health"].items()
    }
    drmap = DRMap().replace_process(*processes)
    return replace(drmap, health=health, version=stored["version"])
