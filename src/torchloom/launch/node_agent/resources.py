"""What a node has to offer: a slot for each CPU, and whatever accelerators its tools tell of."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from torchloom.errors import UserError
from torchloom.launch.node_agent.gpus import Gpus
from torchloom.messages.plane import Device

_PATIENCE = 10.0  # seconds; a driver that is stuck has no devices to offer
_QUERY = ("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
_MIB = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{2,127}")
CHOICE = "LOOM_DEVICES"
LEAST_CPUS = 4  # that a node has room for, whatever it has

Run = Callable[[Sequence[str]], str]


class DeviceProbe(Protocol):
    """A source that knows one kind of device."""

    def devices(self) -> tuple[Device, ...]: ...


class CpuSlots:
    """A slot for each CPU that this process may use, named by node so that it stays the same."""

    def __init__(self, node: str, count: int | None = None) -> None:
        self._node = node
        self._count = _usable_cpus() if count is None else count

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(f"{self._node}/cpu/{index}", "cpu", index) for index in range(self._count)
        )


class NvidiaSmi:
    """NVIDIA's GPUs as their own tool lists them; none where it is missing or fails."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = run or _output

    def devices(self) -> tuple[Device, ...]:
        lines = self._run(("nvidia-smi", *_QUERY)).splitlines()
        return tuple(found for line in lines if (found := _gpu(line)) is not None)


class Nvml:
    """NVIDIA's GPUs as their library lists them."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def devices(self) -> tuple[Device, ...]:
        return self._gpus.devices()


class BadDevices(UserError):
    """What an agent is to offer makes no sense."""

    code = "bad_devices"

    def __init__(self, word: str, known: Sequence[Device]) -> None:
        offered = ", ".join(device.uuid for device in known) or "none"
        wanted = "uuids, indices of GPUs, or cpu:N"
        super().__init__(f"{CHOICE}={word!r} is not a device; name {wanted}. GPUs here: {offered}")


def offered(node: str, choice: str = "", gpus: Gpus | None = None) -> tuple[Device, ...]:
    """Return what an agent registers: all there is, or what was chosen of it.

    A choice has words, separated by commas: `cpu:N` for N slots, the index of a GPU, or a uuid. One
    that no tool knows is taken at its word, so that devices of other makes can be named.
    """
    accelerators = (Nvml(gpus) if gpus else NvidiaSmi()).devices()
    words = [word.strip() for word in choice.split(",") if word.strip()]
    if not words:
        return devices((CpuSlots(node),)) + accelerators
    found = [device for word in words for device in _chosen(word, node, accelerators)]
    return tuple({device.uuid: device for device in found}.values())


def _chosen(word: str, node: str, known: Sequence[Device]) -> tuple[Device, ...]:
    kind, _, count = word.partition(":")
    if kind == "cpu" and count.isdecimal():
        return CpuSlots(node, int(count)).devices()
    if word.isdecimal():
        if int(word) >= len(known):
            raise BadDevices(word, known)
        return (known[int(word)],)
    if named := tuple(device for device in known if device.uuid == word):
        return named
    if not _NAME.fullmatch(word):
        raise BadDevices(word, known)
    return (Device(word, "cpu" if "/cpu/" in word else "cuda", 0),)


def cpus(offered: Sequence[Device], choice: str = "") -> int:
    """Return for how many CPUs' worth of work an agent's node has room: its slots, or all.

    Unless slots were named, the workers of a small job may share the CPUs of a small machine.
    """
    slots = sum(device.kind == "cpu" for device in offered) or _usable_cpus()
    return slots if choice else max(slots, LEAST_CPUS)


def memory_mb(
    meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> int:
    """Return how much memory this node has, or may use; 0 where it is unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        (total,) = re.findall(r"^MemTotal: *(\d+) kB$", meminfo.read_text(), re.MULTILINE)
        found.append(int(total) >> 10)
    with contextlib.suppress(OSError, ValueError):
        found.append(int(limit.read_text()) >> 20)
    return min(found, default=0)


def devices(probes: Sequence[DeviceProbe]) -> tuple[Device, ...]:
    """Return all that the probes know of."""
    return tuple(device for probe in probes for device in probe.devices())


def _gpu(line: str) -> Device | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 3 or not fields[0].isdecimal() or not fields[1]:
        return None
    memory = int(fields[2]) * _MIB if fields[2].isdecimal() else 0
    return Device(fields[1], "cuda", int(fields[0]), memory)


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _output(words: Sequence[str]) -> str:
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout
