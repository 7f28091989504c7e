"""What a node has to offer: a slot for each CPU, and whatever accelerators its tools tell of."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol

from torchloom.bus.messages import Device

_PATIENCE = 10.0  # seconds; a driver that is stuck has no devices to offer
_QUERY = ("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
_MIB = 1 << 20

Run = Callable[[Sequence[str]], str]


class Probe(Protocol):
    """Somebody who knows of one kind of device."""

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


def devices(probes: Sequence[Probe]) -> tuple[Device, ...]:
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
