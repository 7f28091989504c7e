"""The GPUs of a node as NVIDIA's library tells of them; without the library there are none here."""

import ctypes
import importlib
import logging
from dataclasses import dataclass
from typing import Any, Protocol

from torchloom.bus.messages import Device

MODULE = "pynvml"  # of the package nvidia-ml-py, which need not be there
_SLOWED = {8: "hardware", 32: "software thermal", 64: "hardware thermal", 128: "power brake"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported of a GPU."""

    uuid: str
    number: int


@dataclass(frozen=True, slots=True)
class Health:
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
    def health(self, uuid: str) -> Health: ...
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

    def health(self, uuid: str) -> Health:
        """Return what a GPU says of itself now."""
        nvml, handle = self._nvml, self._handles[self._uuids.index(uuid)]
        try:
            heat = self._asked(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            errors = self._asked(nvml.nvmlDeviceGetTotalEccErrors, handle, *kind)
            rows = self._asked(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, None, None)
            slow = self._asked(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle, default=0)
        except _Lost:
            return Health(is_lost=True)
        slowed = tuple(name for bit, name in _SLOWED.items() if slow & bit)
        pending, failed = (None if flag is None else bool(flag) for flag in rows[2:])
        return Health(heat, errors, pending, failed, slowed)

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
