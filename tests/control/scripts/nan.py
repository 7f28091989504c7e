"""A DDP training whose rank 1 gets a NaN at BAD; each rank writes what is finite."""

import json
import os
import time

import torch
import torch.distributed as dist

import torchloom as loom

BAD = int(os.environ["BAD"])
dist.init_process_group("gloo")
rank = dist.get_rank()
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")
run = loom.init()
torch.manual_seed(3)
model = run.wrap(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run.track(optimizer=optimizer)
run.checkpointing(every_n_steps=5, keep_last=1)
for step in run.steps(1_000_000):
    with step:
        weights = all(bool(torch.isfinite(one).all()) for one in model.parameters())
        x = torch.ones(4, 4) * (float("nan") if (rank, step.number) == (1, BAD) else 1.0)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
        told = {"weights": weights, "loss": bool(torch.isfinite(loss))}
        os.write(out, json.dumps([step.number, time.monotonic(), told, ""]).encode() + b"\n")
        time.sleep(0.005)
