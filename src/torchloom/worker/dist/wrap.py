"""Make a model one of many: replicated by DDP, or sharded by FSDP2."""

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torchloom.errors import UserError, shorten
from torchloom.worker.dist.device import get_torch_device
from torchloom.worker.dist.mesh import get_mesh

M = TypeVar("M", bound=nn.Module)
NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}


class BadDtype(UserError):
    """A word that names no floating-point type of torch."""

    code = "bad_dtype"


def wrap_model(
    model: nn.Module,
    use_fsdp: bool = True,
    dtype: str | torch.dtype = "bfloat16",
    device_mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int = True,
    device_id: int | None = None,
) -> nn.Module:
    """Return the model for all ranks: sharded, computing in `dtype`, or replicated as it is.

    A process without peers gets its model back as it was. Make the optimizer afterwards.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    if use_fsdp:
        return wrap_model_for_fsdp2(model, dtype, device_mesh, reshard_after_forward)
    return wrap_model_for_ddp(model, device_id)


def wrap_model_for_ddp(model: nn.Module, device_id: int | None = None) -> DistributedDataParallel:
    """Return the model with gradients averaged over all ranks, on this rank's device."""
    device = _device(device_id)
    ids = None if device.type == "cpu" else [device]
    return DistributedDataParallel(model.to(device), device_ids=ids)


def wrap_model_for_fsdp2(
    model: M,
    dtype: str | torch.dtype = "bfloat16",
    device_mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int = True,
) -> M:
    """Shard the model in place over the data-parallel ranks, each layer of a list for itself."""
    chosen = floating(dtype)
    mesh = device_mesh or get_mesh()
    if mesh is not None and "dp" in (mesh.mesh_dim_names or ()):
        mesh = mesh["dp"]
    model.to(get_torch_device())
    policy = MixedPrecisionPolicy(param_dtype=None if chosen == torch.float32 else chosen)
    parts: list[nn.Module] = [*_layers(model), model]
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    return model


def floating(dtype: str | torch.dtype) -> torch.dtype:
    """Return the type that a word such as `bf16` or `float32` means."""
    found = getattr(torch, NAMES.get(dtype, dtype), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise BadDtype(f"no floating-point type {shorten(str(dtype))!r}; try bfloat16 or float32")
    return found


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the members of module lists; none where parameters are shared across modules."""
    everywhere = len(list(model.named_parameters(remove_duplicate=False)))
    if everywhere != len(list(model.named_parameters())):
        return []
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    layers = [layer for each in lists for layer in each if any(True for _ in layer.parameters())]
    return layers[::-1]  # the inner ones of nested lists first


def _device(device_id: int | None) -> torch.device:
    device = get_torch_device()
    if device_id is None or device.type == "cpu":
        return device
    return torch.device(device.type, device_id)
