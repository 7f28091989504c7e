"""Check limits, clock and accelerators: drivers, and devices that a mask hides."""

import contextlib
import ctypes
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import SubprocessError

from torchloom.doctor.cluster import world_of
from torchloom.doctor.findings import CheckFinding, HostPlace, note, ok, problem, why
from torchloom.launch.host import devices

FILES, FILES_LOW = 4096, 256  # a rank with workers and NCCL opens hundreds
PROCESSES = 1024
SKEW = 2.0  # seconds between this clock and that of the file server
_UNSYNCHRONISED = 5  # what adjtimex returns: TIME_ERROR
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


def limits(place: HostPlace) -> Iterator[CheckFinding]:
    """Compare open files, processes and locked memory with what ranks need."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < FILES:
        make = problem if files < FILES_LOW else note
        raised = min(most, 65536) if most > files else 65536
        yield make("limits", f"{files} open files", f"ulimit -n {raised}")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if 0 <= processes < PROCESSES:
        yield note("limits", f"{processes} processes and threads", "ulimit -u 16384")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked >= 0 and any((place.root / "sys/class/infiniband").glob("*")):
        text = f"{locked >> 10} KiB of locked memory; InfiniBand wants all"
        yield note("limits", text, "ulimit -l unlimited, or memlock in /etc/security/limits.conf")
    if (files < 0 or files >= FILES) and (processes < 0 or processes >= PROCESSES):
        yield ok("limits", f"{_count(files)} open files, {_count(processes)} processes")


def clock(place: HostPlace) -> Iterator[CheckFinding]:
    """Compare our time with the state folder's, and ask the kernel whether it is kept in step."""
    skew = _skew(place.home)
    if abs(skew) > SKEW:
        text = f"{skew:+.1f} s against the file server of {place.home}"
        yield problem("clock", text, "start chrony or ntpd here; records are ordered by time")
    elif _is_synchronised() is False and _has_peers(place):
        yield note(
            "clock", "not synchronized with other hosts", "start chrony or ntpd on every host"
        )
    else:
        yield ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _count(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


def _has_peers(place: HostPlace) -> bool:
    world = world_of(place)
    return world is not None and len(world.hosts) > 1


def _skew(folder: Path) -> float:
    """Return how far ahead the clock is that stamps this folder's files; 0 if that is unknown."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder) as probe:
        before = time.time()
        probe.write(b"x")
        probe.flush()
        stamped, after = Path(probe.name).stat().st_mtime, time.time()
        return min(0.0, stamped - before) or max(0.0, stamped - after)
    return 0.0


def _is_synchronised() -> bool | None:
    """Ask the kernel; nothing where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        answer = int(libc.adjtimex(ctypes.create_string_buffer(512)))  # all zero: only read
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != _UNSYNCHRONISED


def accelerators(place: HostPlace) -> Iterator[CheckFinding]:
    """Report accelerators, the state of their driver, and what a mask hides."""
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
    for card in sorted((root / "sys/class/drm").glob("renderD*")):
        driver = (card / "device/driver").resolve().name
        if (kind := _DRM_DRIVERS.get(driver)) and (kind != "AMD" or (dev / "kfd").exists()):
            counts[kind] = counts.get(kind, 0) + 1
    return {kind: count for kind, count in counts.items() if count}


def _nvidia(place: HostPlace, count: int) -> CheckFinding:
    if not (place.root / "proc/driver/nvidia/version").exists():
        text = f"{count} NVIDIA device files, but no kernel driver"
        return problem(NAME, text, "load the nvidia kernel module, or start with --gpus")
    if shutil.which(_QUERY[0], path=place.env.get("PATH")) is None:
        return ok(NAME, f"{count} NVIDIA; no nvidia-smi to ask for more")
    try:
        lines = place.ask(_QUERY, _PATIENCE).strip().splitlines()
    except (OSError, SubprocessError) as error:
        remedy = "fix the driver: `nvidia-smi` must answer; often a reboot after an update"
        return problem(NAME, f"{count} NVIDIA, nvidia-smi: {why(error)}", remedy)
    names = [line.split(", ") for line in lines]
    kinds = ", ".join(sorted({" ".join(words[:2]).removeprefix("NVIDIA ") for words in names}))
    driver = names[0][-1] if names else "?"
    text = f"{len(names)} NVIDIA: {kinds}, driver {driver}"
    if len(names) < count:
        remedy = "`nvidia-smi` and `dmesg` show which fell off the bus; drain or reset the host"
        return problem(NAME, f"{text}; {count} device files", remedy)
    return ok(NAME, text)


def _masks(place: HostPlace, found: dict[str, int]) -> Iterator[CheckFinding]:
    """Report a mask that names a missing device: it hides that device and all after it."""
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


def _not_there(place: HostPlace, count: int) -> str:
    wanted = devices.visible(place.env)
    return ", ".join(name for name in wanted if name.isdigit() and int(name) >= count)
