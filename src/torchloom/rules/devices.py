"""Which processes use which device, and so which ones a device's failure concerns.

Many to many: a process may span devices, a device may serve several processes. A map is a value:
each change gives a new one with the next version, and what changes nothing gives the same one. A
change copies the map, so reports of many agents are registered together, in one change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

_LOST = {
    46: "the GPU stopped processing",
    62: "its micro-controller halted",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error: whatever ran there may be wrong",
    109: "a context switch timed out",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an ECC error that could not be recovered",
    143: "the GPU could not be initialised",
}
_DEGRADED = {
    48: "a double bit ECC error",
    63: "a memory row is to be remapped at the next reset",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    92: "many single bit ECC errors",
    94: "a contained memory error: the program that had the memory is ended",
    121: "an error of the link between chips",
}
_APP = {
    8: "a program's work stopped the GPU",
    11: "a broken stream of commands",
    13: "an exception in a program's kernel",
    31: "a program used memory that is not its own",
    32: "a broken stream of commands",
    43: "a program's work was reset",
    45: "what was left of a program was cleared away",
    68: "an exception in the video processor",
    69: "an exception in a program's graphics class",
}


@dataclass(frozen=True, slots=True, order=True)
class RankId:
    """The name of a rank that outlives its processes: JOB/ROLE/RANK."""

    job: str
    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.job}/{self.role}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "RankId":
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
class MappedRank:
    """One rank as it registers. Without the name of a replica group it is one by itself."""

    id: RankId
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
class DeviceHealth:
    """The state of a device, and the reason for it."""

    state: DeviceState = DeviceState.HEALTHY
    reason: str = ""


HEALTHY = DeviceHealth()


@dataclass(frozen=True, slots=True)
class DRMap:
    """The device-replica map: `d in pid_to_devices[p]` exactly when `p in device_to_pid[d]`."""

    processes: Mapping[RankId, MappedRank] = field(default_factory=dict)
    device_to_pid: Mapping[str, frozenset[RankId]] = field(default_factory=dict)
    health: Mapping[str, DeviceHealth] = field(
        default_factory=dict
    )  # of devices that are not healthy
    version: int = 0

    @property
    def pid_to_devices(self) -> dict[RankId, frozenset[str]]:
        """Return the devices of every process."""
        return {name: process.devices for name, process in self.processes.items()}

    # Queries.

    def processes_on(self, *devices: str) -> frozenset[RankId]:
        """Return the processes that use any of these devices; none for an unknown one."""
        none: frozenset[RankId] = frozenset()
        return none.union(*(self.device_to_pid.get(device, none) for device in devices))

    def processes_at(self, node: str) -> frozenset[RankId]:
        """Return the processes of a node."""
        return frozenset(p.id for p in self.processes.values() if p.node == node)

    def groups_of(self, processes: Iterable[RankId]) -> frozenset[GroupId]:
        """Return the replica groups that lose a member with these processes."""
        return frozenset(self.processes[p].group for p in processes if p in self.processes)

    def members(self, *groups: GroupId) -> frozenset[RankId]:
        """Return all processes of these replica groups."""
        wanted, replicas = frozenset(groups), {group.name for group in groups}
        return frozenset(
            p.id
            for p in self.processes.values()
            if (not p.replica or p.replica in replicas) and p.group in wanted
        )

    def knows(self, device: str) -> bool:
        return device in self.device_to_pid or device in self.health

    def health_of(self, device: str) -> DeviceHealth:
        return self.health.get(device, HEALTHY)

    # Changes.

    def register(self, *processes: MappedRank) -> "DRMap":
        """Add processes, and devices to those that are there; once or twice is the same."""
        joined = []
        for new in processes:
            old = self.processes.get(new.id)
            joined.append(_joined(old, new) if old else new)
        return self.replace_process(*joined)

    def replace_process(self, *processes: MappedRank) -> "DRMap":
        """Have each process on these devices and no others."""
        new = {p.id: p for p in processes if self.processes.get(p.id) != p}
        return self._with(new) if new else self

    def unregister(self, *processes: RankId) -> "DRMap":
        """Remove processes, and with them devices that are no longer used."""
        gone = {name: None for name in processes if name in self.processes}
        return self._with(gone) if gone else self

    def mark(self, device: str, state: DeviceState, reason: str = "") -> "DRMap":
        """Note a device's state; of an unknown device too, for it may be used later."""
        health = HEALTHY if state is DeviceState.HEALTHY else DeviceHealth(state, reason)
        if self.health_of(device) == health:
            return self
        others = {name: was for name, was in self.health.items() if name != device}
        marked = others if health == HEALTHY else {**others, device: health}
        return replace(self, health=marked, version=self.version + 1)

    def _with(self, changes: Mapping[RankId, MappedRank | None]) -> "DRMap":
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


def _joined(old: MappedRank, new: MappedRank) -> MappedRank:
    return MappedRank(
        new.id, old.devices | new.devices, new.replica or old.replica, new.node or old.node
    )


class Blame(StrEnum):
    """Whom an error concerns."""

    LOST = "lost"  # nothing more can be computed there before a reset
    DEGRADED = "degraded"  # it works, and is to be left soon
    APP = "app"  # what ran there did something wrong; the device is well
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error means for the device."""

    blame: Blame
    words: str

    @property
    def state(self) -> DeviceState | None:
        """The state that the device is in now; none where the error is not about it."""
        return _STATES.get(self.blame)


_STATES = {Blame.LOST: DeviceState.FAILED, Blame.DEGRADED: DeviceState.DRAINING}
MEANINGS: Mapping[int, Meaning] = {
    **{number: Meaning(Blame.LOST, words) for number, words in _LOST.items()},
    **{number: Meaning(Blame.DEGRADED, words) for number, words in _DEGRADED.items()},
    **{number: Meaning(Blame.APP, words) for number, words in _APP.items()},
}


def meaning_of(number: int) -> Meaning:
    """Return what an error means; of one that is not in the table nothing is concluded."""
    return MEANINGS.get(number, Meaning(Blame.UNKNOWN, "not an error that is known here"))


def xid_reason(number: int) -> str:
    """Return the reason as machines match it: `xid_79`."""
    return f"xid_{number}"
