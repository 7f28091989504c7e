"""Device meshes: how the ranks are dealt to data, tensor, pipeline and context parallelism."""

import math
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchloom.errors import UserError
from torchloom.worker.dist.device import get_torch_device_type
from torchloom.worker.dist.place import ALONE, here
from torchloom.worker.dist.store import alone, start

# Slowest first: ranks of one tensor-parallel group are neighbours, on one host if it fits there.
ORDER = ("pp", "dp", "cp", "tp")
NAMES = {"pp": "pipeline", "dp": "data", "cp": "context", "tp": "tensor"}


class BadMesh(UserError):
    """Parallel sizes that do not fit the world."""

    code = "bad_mesh"


class _Made:
    mesh: DeviceMesh | None = None


def mesh_shape(
    world_size: int, dp: int = -1, tp: int = 1, pp: int = 1, cp: int = 1
) -> dict[str, int]:
    """Return the size of each dimension in mesh order; one may be -1: whatever is left."""
    asked = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    sizes = {name: asked[name] for name in ORDER}
    for name, size in sizes.items():
        if size == 0 or size < -1:
            raise BadMesh(f"{name}={size}: {NAMES[name]}-parallel size must be 1 or more, or -1")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise BadMesh(f"{' and '.join(free)} are both -1; only one size can be what is left")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if world_size % fixed or (not free and fixed != world_size):
        said = " x ".join(f"{name}={size}" for name, size in sizes.items() if size != 1)
        raise BadMesh(
            f"{said or 'dp=1'} does not fit {world_size} ranks: the product of the sizes must be "
            f"{world_size}, or divide it with one size -1; change a size or start other ranks"
        )
    return {name: world_size // fixed if size == -1 else size for name, size in sizes.items()}


def make_mesh(dp: int = -1, tp: int = 1, pp: int = 1, cp: int = 1) -> DeviceMesh:
    """Make the mesh of all ranks, with dimensions named pp, dp, cp and tp; remember it."""
    shape = mesh_shape(here().world_size, dp, tp, pp, cp)
    if not dist.is_initialized():  # a world of one has no group, but a mesh needs one
        start("gloo", alone(), ALONE, timedelta(minutes=1))
    _Made.mesh = init_device_mesh(
        get_torch_device_type(), tuple(shape.values()), mesh_dim_names=tuple(shape)
    )
    return _Made.mesh


def get_mesh() -> DeviceMesh | None:
    """Return the mesh made last, or nothing when none was."""
    return _Made.mesh


def forget_mesh() -> None:
    """Drop the mesh: its groups end with the process group."""
    _Made.mesh = None
