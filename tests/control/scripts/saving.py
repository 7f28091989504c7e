"""A DDP loop that saves when it is told; each rank writes for itself before which step that was."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchloom.worker.run import run as loom

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")
run = loom.init()


def save(step: int) -> None:
    with open(f"{os.environ['OUT']}/saved-{rank}", "a") as file:
        print(step, done, file=file)


done = -1
if "SAVES" in os.environ:
    run.on("checkpoint", save)
for step in run.steps(1_000_000):
    with step:
        model(torch.ones(4, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        done = step.number
        os.write(out, json.dumps([step.number, time.monotonic(), {}, ""]).encode() + b"\n")
        time.sleep(0.005)
