"""How much memory a training takes in each rank, as the kernel counts it."""

import ctypes
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from torchloom.specs.jobspec_shape import DISTRIBUTED
from torchloom.worker.dist import strategies

WIDTH, LAYERS, STEPS = 1024, 12, 3


def taken():
    """Return the bytes of this process's own memory, without what the allocator keeps unused."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as lines:
        (line,) = (each for each in lines if each.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def held(model, optimizer):
    """Return the bytes of what this rank has of parameters, gradients and moments."""
    tensors = [*model.parameters(), *(each.grad for each in model.parameters())]
    for state in optimizer.state.values():
        tensors += [state["exp_avg"], state["exp_avg_sq"]]
    return sum(getattr(each, "_local_tensor", each).nbytes for each in tensors)


def trained(width):
    """Train a model for some steps, and keep it with its gradients and the optimizer's moments."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    if how == "plain":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    elif how != "whole":
        layout = strategies.lay_out(DISTRIBUTED({"strategy": how}, "distributed"), rank, world)
        strategies.parallelize(model, layout)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for _ in range(STEPS):
        model(torch.ones(2, width)).sum().backward()
        optimizer.step()
    return model, optimizer


how = os.environ["HOW"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
small = trained(16)  # what is imported, and the groups, are there now
before = taken()
large = trained(WIDTH)
row = {"taken": taken() - before, "held": held(*large), "model": 4 * WIDTH * WIDTH * LAYERS}
with open(f"{os.environ['OUT']}/{how}-{rank}", "w") as out:
    json.dump(row, out)
dist.barrier()
dist.destroy_process_group()
