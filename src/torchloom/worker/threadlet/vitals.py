"""What a rank tells of itself once a second without being asked: speed, learning rate, memory."""

import os
import sys
import time
from typing import Any

_PERIOD = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Vitals:
    """Takes samples in the link's thread."""

    def __init__(self) -> None:
        self._at = 0.0
        self._cpu = 0.0

    @property
    def is_due(self) -> bool:
        """Tell whether the last sample is old enough for another one."""
        return time.monotonic() - self._at >= _PERIOD

    def sample(self, step_seconds: float, knobs: dict[str, float]) -> dict[str, Any]:
        """Return a row of numbers."""
        now, cpu = time.monotonic(), time.process_time()
        share = (cpu - self._cpu) / (now - self._at) if self._at else None
        self._at, self._cpu = now, cpu
        row: dict[str, Any] = {
            "loom/step_seconds": step_seconds,
            "loom/cpu": share,
            "loom/memory": _resident(),
            **{f"loom/{name}": value for name, value in knobs.items()},
        }
        if (used := _device_memory()) is not None:
            row["loom/device_memory"] = used
        return row


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return None


def _device_memory() -> int | None:
    """Return what torch has allocated on its device, if the program has touched one."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    used: int = cuda.memory_allocated()
    return used
