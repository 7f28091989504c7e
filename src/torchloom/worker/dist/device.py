"""The device of a rank, and the backend of its process group."""

from collections.abc import Mapping
from typing import Literal, overload

import torch
import torch.distributed as dist

from torchloom.errors import UserError, shorten
from torchloom.worker import environment
from torchloom.worker.dist.place import get_local_rank, here

BACKENDS: Mapping[str, tuple[str, ...]] = {  # backends of a device, the best first
    "cuda": ("nccl",),
    "xpu": ("xccl", "ccl"),
    "mps": ("gloo",),
    "cpu": ("gloo",),
}
_ORDER = ("xpu", "cuda", "mps")


class BadDevice(UserError):
    """The device is unknown or not available."""

    code = "bad_device"


def get_torch_device_type(device_type: str | None = None) -> str:
    """Return the device type: the argument, `TORCH_DEVICE`, else xpu, cuda, mps or cpu.

    Several ranks on a Mac use the CPU: no backend supports `mps`. Raises BadDevice if the requested
    type is unknown or not available.
    """
    asked = device_type or environment.text("TORCH_DEVICE")
    if asked:
        return _checked(asked.partition(":")[0].lower())
    found = next((kind for kind in _ORDER if _is_there(kind)), "cpu")
    return "cpu" if found == "mps" and here().world_size > 1 else found


@overload
def get_torch_device(
    *, device_type: str | None = None, as_torch_device: Literal[True] = True
) -> torch.device: ...
@overload
def get_torch_device(*, device_type: str | None = None, as_torch_device: Literal[False]) -> str: ...
def get_torch_device(
    *, device_type: str | None = None, as_torch_device: bool = True
) -> torch.device | str:
    """Return this rank's device, by its local rank; ranks that see one device each get index 0."""
    kind = get_torch_device_type(device_type)
    device = torch.device(kind)
    if kind in ("cuda", "xpu"):
        device = torch.device(kind, get_local_rank() % max(1, torch.accelerator.device_count()))
    return device if as_torch_device else str(device)


def get_torch_backend(device_type: str | None = None) -> str:
    """Return the backend: `TORCH_BACKEND`, else nccl on cuda, xccl or ccl on xpu, gloo elsewhere.

    `mpi` is used only on request: few builds of torch have it.
    """
    asked = environment.text("TORCH_BACKEND").lower()
    if asked:
        return asked
    kinds = BACKENDS.get(get_torch_device_type(device_type), ("gloo",))
    return next((kind for kind in kinds if dist.is_backend_available(kind)), kinds[0])


def missing_backend(backend: str) -> str:
    """Return why a backend cannot be used in this process; empty if it can."""
    parts = [part.rpartition(":")[2] for part in backend.split(",")]  # "cpu:gloo,cuda:nccl"
    missing = [part for part in parts if not dist.is_backend_available(part)]
    if missing:
        return f"this torch has no {missing[0]}"
    for part, kind in (("nccl", "cuda"), ("xccl", "xpu")):
        if part in parts and not _is_there(kind):
            return f"{part} needs a {kind} device and this process sees none"
    return ""


def use_device(device: torch.device) -> None:
    """Make a device the current one of this process."""
    if device.index is not None and device.type in ("cuda", "xpu"):
        torch.accelerator.set_device_index(device.index)


def synchronize(device: torch.device | int | str | None = None) -> None:
    """Wait until all work on the device is done; returns at once on the CPU."""
    if not torch.accelerator.is_available():
        return
    if isinstance(device, int):
        device = torch.device(get_torch_device_type(), device)
    chosen = get_torch_device() if device is None else torch.device(device)
    if chosen.type != "cpu":
        torch.accelerator.synchronize(chosen)


def _checked(kind: str) -> str:
    if kind not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise BadDevice(f"no device {shorten(kind)!r}; set TORCH_DEVICE to one of {known}")
    if kind != "cpu" and not _is_there(kind):
        raise BadDevice(
            f"this torch ({torch.__version__}) sees no {kind} device; unset TORCH_DEVICE, set it "
            "to cpu, or check the driver"
        )
    return kind


def _is_there(kind: str) -> bool:
    modules = {"xpu": torch.xpu, "cuda": torch.cuda, "mps": torch.mps}
    return bool(modules[kind].is_available())
