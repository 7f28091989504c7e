"""A plain DDP loop over gloo; each rank writes for itself which lr each of its steps used."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
pause = json.loads(os.environ.get("PAUSES", "[]")) or [0.001] * 8
sync = os.environ.get("SYNC", "1") == "1"
evaluation = float(os.environ.get("EVALUATION", "0")) if rank == 1 else 0.0

torch.manual_seed(3)
if sync:
    dist.init_process_group("gloo")
model = nn.Linear(4, 2)
model = DistributedDataParallel(model) if sync else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
out = open(os.environ["OUT"], "w", buffering=1)  # noqa: SIM115
steps = [0]


def write(one, args, kwargs):
    print(json.dumps([steps[0], one.param_groups[0]["lr"], time.monotonic()]), file=out)


optimizer.register_step_pre_hook(write)
for i in range(int(os.environ.get("STEPS", "100000"))):
    steps[0] = i
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(i * 8 + rank))
    model(x).pow(2).mean().mul(1e-3).backward()
    optimizer.step()
    optimizer.zero_grad()
    if evaluation and i == 30:
        time.sleep(evaluation)
    time.sleep(pause[rank])
