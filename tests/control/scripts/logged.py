"""A DDP loop that logs its loss; each rank writes for itself what it logged, at which time.

A second file has, a line a step: when it ended, and the CPU seconds of the training thread and of
the whole process until then.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchloom.worker.run import run as loom

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")
cpu = os.open(f"{os.environ['OUT']}/cpu-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
run = loom.init()
for step in run.steps(1_000_000):
    with step:
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step.number * 8 + rank))
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss, half=step.number / 2)
        time.sleep(0.005)
        logged = {"loss": loss.item(), "half": step.number / 2}
        now = time.monotonic()
        os.write(out, json.dumps([step.number, now, logged, ""]).encode() + b"\n")
        os.write(cpu, f"{now} {time.thread_time()} {time.process_time()}\n".encode())
