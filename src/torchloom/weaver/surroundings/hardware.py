"""The machine a job runs on, as its kernel describes it."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchloom.weaver.store.rows import Device

_PROC = Path("/proc")


def hardware(host: str, nodes: Iterable[str], devices: Iterable[Device]) -> dict[str, Any]:
    """Return this machine and the devices of the nodes of a job."""
    wanted = {host, *nodes}
    found = [one for one in devices if one.node in wanted]
    return {
        "host": host,
        "cpu": cpu_model(_text("cpuinfo")),
        "cores": os.cpu_count(),
        "memory_mb": memory_mb(_text("meminfo")),
        "nodes": sorted(wanted),
        "devices": [_device(one) for one in sorted(found, key=_place)],
    }


def cpu_model(text: str) -> str | None:
    """Return what a processor is called."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("model name", "cpu model", "hardware", "cpu part"):
            return value.strip() or None
    return None


def memory_mb(text: str) -> int | None:
    """Return how much memory there is."""
    for line in text.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return None


def _device(device: Device) -> dict[str, Any]:
    names = ("uuid", "kind", "node", "index", "memory")
    return {name: getattr(device, name) for name in names}


def _place(device: Device) -> tuple[str, str, int]:
    return device.node, device.kind, device.index


def _text(name: str) -> str:
    with contextlib.suppress(OSError):
        return (_PROC / name).read_text(errors="replace")
    return ""  # not Linux
