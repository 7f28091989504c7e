"""A loop whose parameters are shards (FSDP2), and which asks the run to carry them in some way."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import torchloom as loom
from torchloom.worker.threadlet.threadlet import current

how = json.loads(os.environ["TOLD"])["how"]
out = open(f"{os.environ['OUT']}/rank-{os.environ['RANK']}", "w")  # noqa: SIM115
dist.init_process_group("gloo")
torch.manual_seed(0)
run = loom.init()
net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
if how == "wrap before":
    net = run.wrap(net)
    fully_shard(net.module)
elif how in ("wrap fsdp1", "track fsdp1"):
    net = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
elif how != "track zero":
    fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
if how == "track zero":
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01)

if how == "wrap fsdp1":
    net = run.wrap(net)
elif how == "track zero":
    run.track(optimizer=optimizer)
elif how == "track fsdp1":
    run.track(ema=net)
for step in run.steps(4):
    with step:
        loss = net(torch.full((2, 8), float(step.number))).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
        out.write(json.dumps({"step": step.number, "loss": loss.item()}) + "\n")
out.close()
current().close()  # a fork of the tests leaves without
dist.destroy_process_group()
