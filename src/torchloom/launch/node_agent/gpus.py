"""The GPUs of a node as NVIDIA's library reports them; without the library there are none here."""

import asyncio
import ctypes
import importlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from torchloom.messages.plane import Device, DeviceEvent, Head
from torchloom.rules.devices import Blame, meaning_of, xid_reason

MODULE = "pynvml"  # of the package nvidia-ml-py, which need not be there
_SLOWED = {8: "hardware", 32: "software thermal", 64: "hardware thermal", 128: "power brake"}
_log = logging.getLogger(__name__)
SOURCE = "nvml"
_WAIT = 1.0  # seconds that one look for errors takes, when there are none
_COUNTERS = 30  # looks for errors between two at the counters


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported of a GPU."""

    uuid: str
    number: int


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What a GPU's counters say; None is what it does not count."""

    temperature: int | None = None
    uncorrected: int | None = None  # ECC errors since the driver was loaded
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowed_by: tuple[str, ...] = ()
    is_lost: bool = False


class Gpus(Protocol):
    """Who knows a node's GPUs; `wait` blocks, so that it has a thread of its own."""

    def devices(self) -> tuple[Device, ...]: ...
    def health(self, uuid: str) -> GpuHealth: ...
    def wait(self, seconds: float) -> Xid | None: ...
    def close(self) -> None: ...


class NvmlGpus:
    """GPUs over NVML. A question that a GPU does not answer has no answer; one that is lost is."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in self._handles]
        self._events = nvml.nvmlEventSetCreate()
        for handle in self._handles:
            wanted = nvml.nvmlEventTypeXidCriticalError
            if self._asked(nvml.nvmlDeviceGetSupportedEventTypes, handle, default=0) & wanted:
                self._asked(nvml.nvmlDeviceRegisterEvents, handle, wanted, self._events)

    def devices(self) -> tuple[Device, ...]:
        """Return all GPUs, in the driver's order."""
        ask = self._nvml.nvmlDeviceGetMemoryInfo
        memory = [self._asked(ask, handle) for handle in self._handles]
        return tuple(
            Device(uuid, "cuda", index, found.total if found else 0)
            for index, (uuid, found) in enumerate(zip(self._uuids, memory, strict=True))
        )

    def health(self, uuid: str) -> GpuHealth:
        """Return what a GPU says of itself now."""
        nvml, handle = self._nvml, self._handles[self._uuids.index(uuid)]
        try:
            heat = self._asked(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            errors = self._asked(nvml.nvmlDeviceGetTotalEccErrors, handle, *kind)
            rows = self._asked(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, None, None)
            slow = self._asked(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle, default=0)
        except _Lost:
            return GpuHealth(is_lost=True)
        slowed = tuple(name for bit, name in _SLOWED.items() if slow & bit)
        pending, failed = (None if flag is None else bool(flag) for flag in rows[2:])
        return GpuHealth(heat, errors, pending, failed, slowed)

    def wait(self, seconds: float) -> Xid | None:
        """Return the next error that is reported in so many seconds, if one is."""
        nvml = self._nvml
        try:
            found = nvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        of = [_is_same(handle, found.device) for handle in self._handles]
        return Xid(self._uuids[of.index(True)], found.eventData) if True in of else None

    def close(self) -> None:
        """Let the library go."""
        self._nvml.nvmlEventSetFree(self._events)
        self._nvml.nvmlShutdown()

    def _asked(self, ask: Any, *words: Any, default: Any = None) -> Any:
        nvml = self._nvml
        try:
            return ask(*words)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise _Lost from error
            return default


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two handles are of one GPU, which may be past answering for itself."""
    if one == other or not isinstance(other, ctypes._Pointer):
        return bool(one == other)
    return _address(one) == _address(other)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class _Lost(Exception):
    """The GPU is not there any more, says the driver."""


def find(module: str = MODULE) -> Gpus | None:
    """Return the GPUs of this node; nothing where there is no library, driver or GPU."""
    try:
        nvml = importlib.import_module(module)
    except ImportError:
        return None
    try:
        return NvmlGpus(nvml)
    except (nvml.NVMLError, _Lost) as error:
        _log.info("no GPUs by NVML: %s", error)
        return None


State = Literal["failed", "healthy", "draining"]
Say = Callable[[DeviceEvent], Awaitable[bool]]  # whether it was received


class HealthWatch:
    """Says each thing once; whether a device is well again a person says."""

    def __init__(self, head: Head, gpus: Gpus, say: Say) -> None:
        self._head = head
        self._gpus = gpus
        self._say = say
        self._uuids = [device.uuid for device in gpus.devices()]
        self._said: dict[str, State] = {}
        self._owed: list[DeviceEvent] = []
        self.facts: dict[str, dict[str, Any]] = {}  # by uuid, for readers

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


def judge(found: GpuHealth) -> tuple[State | None, str]:
    """Return what counters mean for a device, and why; heat alone slows it and no more."""
    if found.is_lost:
        return "failed", "gpu_is_lost"
    if found.remap_failed:
        return "draining", "row_remap_failed"
    if found.remap_pending:
        return "draining", "row_remap_pending"
    return None, ""
