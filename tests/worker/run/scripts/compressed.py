"""Models that start alike and see the same data, each with gradients compressed in another way."""

import copy
import json
import os

import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom

told = json.loads(os.environ["TOLD"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
run = loom.init()
torch.manual_seed(1)
first = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
models, optimizers = {}, {}
for name, given in told["cases"].items():
    model = run.wrap(copy.deepcopy(first), name=name, compression=given, bucket_cap_mb=0.02)
    kind = torch.optim.Adam if name.endswith("adam") else torch.optim.SGD
    rate = {"lr": 3e-3} if name.endswith("adam") else {"lr": 0.1, "momentum": 0.9}
    models[name], optimizers[name] = model, kind(model.parameters(), **rate)
run.track(**{f"optimizer of {name}": each for name, each in optimizers.items()})

own = torch.Generator().manual_seed(100 + rank)
judge = torch.randn(32, 4, generator=torch.Generator().manual_seed(5))
losses = {name: [] for name in models}
for step in run.steps(told["steps"]):
    with step:
        inputs = torch.randn(64, 32, generator=own)
        labels = (inputs @ judge).argmax(1)
        for name, model in models.items():
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            losses[name].append(loss.item())

found = {}
for name, model in models.items():
    flat = torch.cat([each.detach().flatten() for each in model.parameters()])
    everywhere = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(everywhere, flat)
    last = sum(losses[name][-20:]) / 20
    found[name] = {"loss": last, "alike": all(torch.equal(flat, each) for each in everywhere)}
print(json.dumps(found))
model = None
models.clear()
dist.destroy_process_group()
loom.init().finish()
