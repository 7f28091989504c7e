"""Set-up of torch.distributed under any launcher, and helpers for collectives and devices.

`setup_torch()` joins the ranks, whether `loom launch`, torchrun, srun, mpiexec or nothing started
them; the other functions work with and without other ranks.

Example:
    >>> rank = setup_torch(seed=0)
    >>> model = wrap_model(model.to(get_torch_device()))
"""

from torchloom.worker.dist.comm import (
    Alone,
    Collectives,
    TorchCollectives,
    all_reduce,
    barrier,
    broadcast,
    collectives,
)
from torchloom.worker.dist.device import (
    get_torch_backend,
    get_torch_device,
    get_torch_device_type,
    synchronize,
)
from torchloom.worker.dist.parallelism import (
    get_mesh,
    make_mesh,
    mesh_shape,
    wrap_model,
    wrap_model_for_ddp,
    wrap_model_for_fsdp2,
)
from torchloom.worker.dist.place import (
    get_gpus_per_node,
    get_local_rank,
    get_local_world_size,
    get_node_index,
    get_num_nodes,
    get_rank,
    get_world_size,
)
from torchloom.worker.dist.setup import cleanup, seed_everything, setup_torch
from torchloom.worker.dist.timer import Timer, timeitlogit

__all__ = [
    "setup_torch",
    "cleanup",
    "get_rank",
    "get_world_size",
    "get_local_rank",
    "get_local_world_size",
    "get_node_index",
    "get_num_nodes",
    "get_gpus_per_node",
    "get_torch_device",
    "get_torch_device_type",
    "get_torch_backend",
    "barrier",
    "broadcast",
    "all_reduce",
    "synchronize",
    "seed_everything",
    "wrap_model",
    "wrap_model_for_ddp",
    "wrap_model_for_fsdp2",
    "make_mesh",
    "mesh_shape",
    "get_mesh",
    "Timer",
    "timeitlogit",
    "Collectives",
    "TorchCollectives",
    "Alone",
    "collectives",
]
