"""A DDP loop over gloo; each rank writes for itself who it is, then a line a step.

A line has the step, the learning rate that the optimizer used in it, and the two numbers that were
logged. It goes on until the file `enough` is there; then all ranks leave behind the same step.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["OUT"]
out = os.open(f"{folder}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
who = {"pid": os.getpid(), "rank": rank, "world": dist.get_world_size()}
os.write(out, json.dumps({**who, "backend": dist.get_backend()}).encode() + b"\n")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
used = {}


def batches():
    """Yield until there are enough, on all ranks equally often; not for ever, whoever asks."""
    for _ in range(20_000):
        enough = torch.tensor(os.path.exists(f"{folder}/enough"), dtype=torch.int)
        dist.all_reduce(enough)
        if enough:
            return
        yield


optimizer.register_step_pre_hook(lambda one, *_: used.update(lr=one.param_groups[0]["lr"]))
run = loom.init()
print(f"rank {rank} begins", flush=True)
for step in run.steps(batches()):
    with step:
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step.number * 8 + rank))
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss, mark=rank + step.number / 8)
        row = [step.number, used["lr"], loss.item(), rank + step.number / 8]
        os.write(out, json.dumps(row).encode() + b"\n")
        if step.number % 10 == 0:
            print(f"rank {rank} is at {step.number}", flush=True)
        time.sleep(0.01)
dist.destroy_process_group()
