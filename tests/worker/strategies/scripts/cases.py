"""A training by each strategy on the ranks of one group; each rank writes down what it computed.

`judge.py` is the same training on one process, in plain torch.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from torchloom.specs.jobspec_shape import DISTRIBUTED
from torchloom.worker.dist import strategies

sys.path.insert(0, os.environ["SCRIPTS"])
from trained import CLIP, RATE, STEPS, batch, loss_of, made

out = Path(os.environ["OUT"])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def trained(case):
    kind, distributed, options = case["model"], case["distributed"], case.get("options", {})
    model = made(kind, seed=rank)  # ranks begin with different weights: those of rank 0 count
    layout = strategies.lay_out(DISTRIBUTED(distributed, "distributed"), rank, world)
    model = strategies.parallelize(model, layout, case.get("plan"), **options)
    is_cut = layout.mesh.pp > 1
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    share, shares = layout.share
    losses, gradients, norms = [], {}, []
    for step in range(STEPS):
        inputs, targets = (each[share::shares] for each in batch(kind, step))
        if is_cut:
            loss, _ = model.step(inputs, targets, loss_of)
        else:
            loss = loss_of(model(inputs), targets)
            loss.backward()
        if step in (0, STEPS - 1):
            gradients[step] = {name: whole(p.grad) for name, p in model.named_parameters()}
        group = model.group if is_cut else None
        norms.append(float(strategies.clip_gradients(model.parameters(), CLIP, group)))
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().double()
        dist.all_reduce(total)
        losses.append(float(total) / world)
    return {"losses": losses, "gradients": gradients, "norms": norms}


found = [trained(case) for case in json.loads(os.environ["CASES"])]
torch.save(found, out / f"rank-{rank}.pt")
dist.barrier()
dist.destroy_process_group()
