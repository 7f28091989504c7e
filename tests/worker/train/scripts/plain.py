"""What ready-made training is to do, written by hand in plain torch; nothing of torchloom in it."""

import hashlib
import json
import math
import os

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

told = json.loads(os.environ["TOLD"])
seed, epochs, size, passes = told["seed"], told["epochs"], told["batch_size"], told["accumulate"]
changes = {int(step): lr for step, lr in told.get("changes", {}).items()}
limit = told.get("stop", 1 << 60)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
with numpy.load(told["table"]) as arrays:
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
kept = order[int(len(x) * 0.1) :]
x, y = x[kept], y[kept]

torch.manual_seed(seed)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=told["lr"], momentum=0.9, weight_decay=1e-3)
sampler = torch.utils.data.DistributedSampler(kept, world, rank, shuffle=True, seed=seed)
out = open(f"{os.environ['OUT']}/rank-{rank}", "w")  # noqa: SIM115
each = -(-len(sampler) // (size * passes))
for _ in range(2):  # DDP's first pass adds up in another order than all later ones
    model(x[:size]).sum().backward()
    optimizer.zero_grad()
step, peak = 0, told["lr"]
for epoch in range(epochs):
    if step == limit:
        break
    sampler.set_epoch(epoch)
    mine = torch.tensor(list(sampler))
    for group in mine.split(size * passes):
        if step == limit:
            break
        peak = changes.get(step, peak)
        wave = (1 + math.cos(math.pi * (step / (epochs * each)))) / 2
        lr = peak * (wave if told["cosine"] else 1.0)
        optimizer.param_groups[0]["lr"] = lr
        parts = group.split(size)
        for number, part in enumerate(parts, 1):
            model.require_backward_grad_sync = number == len(parts)
            loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
            (loss * (len(part) / len(group))).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), told["clip"])
        optimizer.step()
        optimizer.zero_grad()
        weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        digest = hashlib.blake2b(weights, digest_size=8).hexdigest()
        out.write(json.dumps([lr, 0.9, digest]) + "\n")
        step += 1
out.close()
del model
dist.destroy_process_group()
