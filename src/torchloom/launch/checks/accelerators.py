"""Which accelerators the kernel offers, whether their driver answers, and what a mask hides."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from subprocess import SubprocessError

from torchloom.launch import devices
from torchloom.launch.checks.finding import Finding, Place, note, ok, problem, why

NAME = "devices"
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_PATIENCE = 15.0
# What the kernel calls them under /dev.
_KINDS = (
    ("NVIDIA", "nvidia[0-9]*", r"nvidia\d+"),
    ("Gaudi", "accel/accel[0-9]*", r"accel\d+"),
    ("Ascend", "davinci[0-9]*", r"davinci\d+"),
    ("Neuron", "neuron[0-9]*", r"neuron\d+"),
)
_DRM_DRIVERS = {"amdgpu": "AMD", "i915": "Intel", "xe": "Intel"}
_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def accelerators(place: Place) -> Iterator[Finding]:
    """Tell what is there, what its driver says, and what a mask makes of it."""
    found = _found(place.root)
    if not found:
        yield ok(NAME, "no accelerator; ranks use the CPU")
    for kind, count in found.items():
        yield _nvidia(place, count) if kind == "NVIDIA" else ok(NAME, f"{count} {kind}")
    yield from _masks(place, found)


def _found(root: Path) -> dict[str, int]:
    dev = root / "dev"
    counts = {
        kind: sum(bool(re.fullmatch(pattern, entry.name)) for entry in dev.glob(glob))
        for kind, glob, pattern in _KINDS
    }
    for card in (root / "sys/class/drm").glob("renderD*"):
        driver = (card / "device/driver").resolve().name
        if (kind := _DRM_DRIVERS.get(driver)) and (kind != "AMD" or (dev / "kfd").exists()):
            counts[kind] = counts.get(kind, 0) + 1
    return {kind: count for kind, count in counts.items() if count}


def _nvidia(place: Place, count: int) -> Finding:
    if not (place.root / "proc/driver/nvidia/version").exists():
        text = f"{count} NVIDIA device files, but no kernel driver"
        return problem(NAME, text, "load the nvidia kernel module, or start with --gpus")
    if shutil.which(_QUERY[0], path=place.env.get("PATH")) is None:
        return ok(NAME, f"{count} NVIDIA; no nvidia-smi to ask for more")
    try:
        lines = place.ask(_QUERY, _PATIENCE).strip().splitlines()
    except (OSError, SubprocessError) as error:
        remedy = "mend the driver: `nvidia-smi` must answer; often a reboot after an update"
        return problem(NAME, f"{count} NVIDIA, nvidia-smi: {why(error)}", remedy)
    names = [line.split(", ") for line in lines]
    kinds = ", ".join(sorted({" ".join(words[:2]).removeprefix("NVIDIA ") for words in names}))
    driver = names[0][-1] if names else "?"
    text = f"{len(names)} NVIDIA: {kinds}, driver {driver}"
    if len(names) < count:
        remedy = "`nvidia-smi` and `dmesg` say which fell off the bus; drain or reset the host"
        return problem(NAME, f"{text}; {count} device files", remedy)
    return ok(NAME, text)


def _masks(place: Place, found: dict[str, int]) -> Iterator[Finding]:
    """A mask that names a device that is not there hides that device and all behind it."""
    for mask in _MASKS:
        if mask not in place.env or not found:
            continue
        value = place.env[mask]
        count = found.get("NVIDIA", 0)
        if mask == devices.MASK and (odd := _not_there(place, count)):
            yield problem("mask", f"{mask}={value} names {odd}", f"{count} are there; unset {mask}")
        elif value.strip() in ("", "-1", "NoDevFiles"):
            yield note("mask", f"{mask} hides all devices", f"unset {mask} to use them")
        else:
            yield ok("mask", f"{mask}={value}")


def _not_there(place: Place, count: int) -> str:
    wanted = devices.visible(place.env)
    return ", ".join(name for name in wanted if name.isdigit() and int(name) >= count)
