"""Calls of torch.distributed that also work in a process of its own: TorchX's `distributed`."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist

from torchloom.worker import environment

Backend = Literal["nccl", "gloo", "auto"]


def local_rank() -> int:
    """Return the rank within this node; 0 outside of a launch."""
    found = environment.text("LOCAL_RANK")
    if not found and dist.is_initialized():
        problem = "LOCAL_RANK is not set, 0 is assumed; start the script with loom or torchrun"
        warnings.warn(problem, stacklevel=2)
    return int(found or 0)


def local_cuda_device() -> torch.device:
    """Return the GPU with the number of the local rank."""
    return torch.device(f"cuda:{local_rank()}")


def local_device() -> torch.device:
    """Return the device that the backend of the process group uses; without a group, a GPU if any."""
    if dist.is_initialized():
        is_nccl = dist.get_backend() == "nccl"
        return local_cuda_device() if is_nccl else torch.device("cpu")
    return torch.device("cuda" if _has_gpus() else "cpu")


def rank() -> int:
    """Return the rank; before a process group exists, that of the launch, or 0."""
    return dist.get_rank() if dist.is_initialized() else int(environment.text("RANK", "0"))


def world_size() -> int:
    """Return the number of ranks; before a process group exists, that of the launch, or 1."""
    return dist.get_world_size() if dist.is_initialized() else int(environment.text("WORLD_SIZE", "1"))


def is_rank0() -> bool:
    """Tell whether this is rank 0, or the only process."""
    return rank() == 0


def is_local_rank0() -> bool:
    """Tell whether this is the first rank of its node, or the only process."""
    return local_rank() == 0


def init_pg(backend: Backend = "auto", **kwargs: Any) -> torch.device:
    """Make the process group, of one process outside of a launch; return the device of this rank.

    Args:
        backend: `auto` is nccl where there are GPUs, else gloo.
        **kwargs: Further arguments of `torch.distributed.init_process_group`.
    """
    if backend == "auto":
        backend = "nccl" if _has_gpus() and dist.is_nccl_available() else "gloo"
    if dist.is_torchelastic_launched() or environment.is_set("RANK"):
        dist.init_process_group(backend=backend, **kwargs)
    else:
        environment.export({"MASTER_ADDR": "localhost", "MASTER_PORT": "0"})
        dist.init_process_group(backend=backend, rank=0, world_size=1, **kwargs)
    return local_cuda_device() if backend == "nccl" else torch.device("cpu")


@contextmanager
def on_rank0_first() -> Iterator[None]:
    """Run the block on rank 0, then on all other ranks."""
    with _first(is_rank0()):
        yield


@contextmanager
def on_local_rank0_first() -> Iterator[None]:
    """Run the block on the first rank of each node, then on all others."""
    with _first(is_local_rank0()):
        yield


@contextmanager
def _first(is_first: bool) -> Iterator[None]:
    if dist.is_initialized() and not is_first:
        dist.barrier()
    try:
        yield
    finally:
        if dist.is_initialized() and is_first:
            dist.barrier()


def _has_gpus() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() > 0
