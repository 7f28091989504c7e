"""Data-parallel models: replicated by DDP, or sharded by FSDP2; and the device mesh."""

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchloom.errors import UserError, shorten
from torchloom.worker.dist.device import get_torch_device, get_torch_device_type
from torchloom.worker.dist.place import ALONE, here
from torchloom.worker.dist.stores import alone, start

# Slowest first: ranks of one tensor-parallel group are neighbours, on one host if it fits there.
ORDER = ("pp", "dp", "cp", "tp")
DIMENSIONS = {"pp": "pipeline", "dp": "data", "cp": "context", "tp": "tensor"}
M = TypeVar("M", bound=nn.Module)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward pass that gathers parameters
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


class BadMesh(UserError):
    """The parallel sizes do not fit the number of ranks."""

    code = "bad_mesh"


class _Made:
    mesh: DeviceMesh | None = None


def mesh_shape(
    world_size: int, dp: int = -1, tp: int = 1, pp: int = 1, cp: int = 1
) -> dict[str, int]:
    """Return the size of each dimension in mesh order; one of them may be -1, for the rest."""
    asked = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    sizes = {name: asked[name] for name in ORDER}
    for name, size in sizes.items():
        if size == 0 or size < -1:
            raise BadMesh(
                f"{name}={size}: {DIMENSIONS[name]}-parallel size must be 1 or more, or -1"
            )
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise BadMesh(f"{' and '.join(free)} are both -1; only one size can be the rest")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if world_size % fixed or (not free and fixed != world_size):
        sizes_text = " x ".join(f"{name}={size}" for name, size in sizes.items() if size != 1)
        raise BadMesh(
            f"{sizes_text or 'dp=1'} does not fit {world_size} ranks: the product of the sizes must be "
            f"{world_size}, or divide it with one size -1; change a size or start other ranks"
        )
    return {name: world_size // fixed if size == -1 else size for name, size in sizes.items()}


def make_mesh(dp: int = -1, tp: int = 1, pp: int = 1, cp: int = 1) -> DeviceMesh:
    """Create the mesh of all ranks, with the dimensions pp, dp, cp and tp; `get_mesh` returns it."""
    shape = mesh_shape(here().world_size, dp, tp, pp, cp)
    if not dist.is_initialized():  # a world of one has no group, but a mesh needs one
        start("gloo", alone(), ALONE, timedelta(minutes=1))
    _Made.mesh = init_device_mesh(
        get_torch_device_type(), tuple(shape.values()), mesh_dim_names=tuple(shape)
    )
    return _Made.mesh


def get_mesh() -> DeviceMesh | None:
    """Return the mesh that `make_mesh` created last, or None."""
    return _Made.mesh


def forget_mesh() -> None:
    """Drop the mesh: its groups end with the process group."""
    _Made.mesh = None


class BadDtype(UserError):
    """The name is not a floating-point type of torch."""

    code = "bad_dtype"


def wrap_model(
    model: nn.Module,
    use_fsdp: bool = True,
    dtype: str | torch.dtype = "bfloat16",
    device_mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int = True,
    device_id: int | None = None,
) -> nn.Module:
    """Return the model for data-parallel training: sharded by FSDP2, or replicated by DDP.

    Create the optimizer afterwards. A process without other ranks gets its model back unchanged.
    `run.wrap` is the alternative that live recovery can rebuild.

    Args:
        model: The module to train.
        use_fsdp: Shard parameters over the ranks; False replicates them.
        dtype: The type that a sharded model computes in.
        device_mesh: The mesh to shard over; without one, that of `make_mesh`, else all ranks.
        reshard_after_forward: As in torch's `fully_shard`.
        device_id: The index of the device for a replicated model.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    if use_fsdp:
        return wrap_model_for_fsdp2(model, dtype, device_mesh, reshard_after_forward)
    return wrap_model_for_ddp(model, device_id)


def wrap_model_for_ddp(model: nn.Module, device_id: int | None = None) -> DistributedDataParallel:
    """Return the model in DistributedDataParallel, on this rank's device."""
    device = _device(device_id)
    ids = None if device.type == "cpu" else [device]
    return DistributedDataParallel(model.to(device), device_ids=ids)


def wrap_model_for_fsdp2(
    model: M,
    dtype: str | torch.dtype = "bfloat16",
    device_mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int = True,
) -> M:
    """Shard the model in place over the data-parallel ranks, each layer of a ModuleList apart."""
    chosen = floating(dtype)
    mesh = device_mesh or get_mesh()
    if mesh is not None and "dp" in (mesh.mesh_dim_names or ()):
        mesh = mesh["dp"]
    model.to(get_torch_device())
    policy = MixedPrecisionPolicy(param_dtype=None if chosen == torch.float32 else chosen)
    parts: list[nn.Module] = [*layers_of(model), model]
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    return model


def floating(dtype: str | torch.dtype) -> torch.dtype:
    """Return the type with a name such as `bf16` or `float32`."""
    found = getattr(torch, DTYPES.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise BadDtype(f"no floating-point type {shorten(str(dtype))!r}; try bfloat16 or float32")
    return found


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the members of module lists, and those of a model that is a sequence of modules.

    They are gathered one after another. None if modules share parameters.
    """
    everywhere = len(list(model.named_parameters(remove_duplicate=False)))
    if everywhere != len(list(model.named_parameters())):
        return []
    lists: list[Iterable[nn.Module]] = [model] if isinstance(model, nn.Sequential) else []
    lists += [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    layers = [
        layer
        for each in lists
        for layer in each
        if any(True for _ in layer.parameters()) and not isinstance(layer, _CONTAINERS)
    ]
    return layers[::-1]  # the inner ones of nested lists first


def _device(device_id: int | None) -> torch.device:
    device = get_torch_device()
    if device_id is None or device.type == "cpu":
        return device
    return torch.device(device.type, device_id)
