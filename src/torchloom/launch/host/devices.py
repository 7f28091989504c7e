"""Which accelerators this host offers, and who gets which; asked of the kernel, without torch."""

import re
from collections.abc import Mapping
from pathlib import Path

MASK = "CUDA_VISIBLE_DEVICES"


def visible(env: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the devices a process with this environment may use, as the mask names them."""
    if MASK in env:
        return tuple(part.strip() for part in env[MASK].split(",") if _is_device(part.strip()))
    found = (re.fullmatch(r"nvidia(\d+)", entry.name) for entry in dev.glob("nvidia*"))
    return tuple(str(number) for number in sorted(int(match[1]) for match in found if match))


def deal(devices: tuple[str, ...], wants: list[int]) -> list[str] | None:
    """Return each replica's mask when there are enough devices for all, else nothing."""
    if sum(wants) > len(devices):
        return None
    masks, start = [], 0
    for want in wants:
        masks.append(",".join(devices[start : start + want]))
        start += want
    return masks


def _is_device(name: str) -> bool:
    return bool(name) and name != "-1" and name != "NoDevFiles"
