"""A training that writes down, itself, what each of its steps was: samples, and weights' digest."""

import contextlib
import hashlib
import json
import os
import random
import signal

import numpy
import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom
from torchloom.worker.threadlet.threadlet import current

told = json.loads(os.environ["TOLD"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    dist.init_process_group("gloo")
if "seed" in told:
    torch.manual_seed(told["seed"])


class Net(nn.Module):
    """Layers that are registered in another order than they are used in."""

    def __init__(self, width=24, depth=4):
        super().__init__()
        self.depth = depth
        for at in (2, 0, 3, 1):
            setattr(self, f"layer{at}", nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(told.get("dropout", 0.0))

    def forward(self, x):
        for at in range(self.depth):
            x = torch.tanh(getattr(self, f"layer{at}")(x))
        return {"out": self.drop(self.norm(x)), "more": [x]}


class Samples(torch.utils.data.Dataset):
    """Samples with noise from three sources of chance."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        x = torch.linspace(-1, 1, 24) * (at + 1) / self.count
        noise = torch.randn(24) + random.random() + numpy.random.rand()
        return x + 0.1 * noise, at


run = loom.init()
torch.manual_seed(5)
net = Net()
torch.manual_seed(told.get("initial", 7))  # what follows from it: the run's seed
model = run.wrap(net, **told.get("options", {}))
make = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
optimizer = make[told.get("optimizer", "sgd")](model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
scaler = torch.amp.GradScaler("cpu", enabled=told.get("amp", False), growth_interval=3)
run.track(optimizer=optimizer, scheduler=scheduler, scaler=scaler)
if "checkpointing" in told:
    run.checkpointing(**told["checkpointing"])

samples = Samples(told.get("samples", 96))
kind, size = told.get("loader", "own"), told.get("batch_size", 4)
workers = {"num_workers": told.get("workers", 0)}
if told.get("persistent"):
    workers["persistent_workers"] = True
if kind == "own":
    source = run.loader(samples, batch_size=size, **workers)
elif kind == "stock":
    source = torch.utils.data.DataLoader(samples, batch_size=size, shuffle=True, **workers)
elif kind == "sampler":
    sampler = torch.utils.data.DistributedSampler(samples, world, rank, seed=3)
    source = torch.utils.data.DataLoader(samples, size, sampler=sampler, **workers)
else:
    source = told["steps"]

out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
every = told.get("accumulate", 1)


def digest():
    parts = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    own = b"".join(b.numpy().tobytes() for b in net.buffers())
    return hashlib.blake2b(parts + own, digest_size=8).hexdigest()


def train(epochs):
    for step in run.steps(source, epochs=epochs):
        with step:
            if isinstance(source, int):
                x, index = torch.randn(size, 24), torch.zeros(0)
            else:
                x, index = step.batch
            is_last = (step.number + 1) % every == 0
            if told.get("switch"):  # as nanoGPT does it
                model.require_backward_grad_sync = is_last
            with contextlib.nullcontext() if is_last or told.get("switch") else model.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=told.get("amp", False)):
                    outputs = model(x)
                    loss = outputs["out"].float().pow(2).mean() + outputs["more"][0].float().mean()
                scaler.scale(loss).backward()
            if is_last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
            step.log(loss=loss)
            if step.number in told.get("asks", []):
                run.checkpoint()
            if step.number in told.get("rebuilds", []):
                model.rebuild()
            if step.number in told.get("signals", []):
                signal.raise_signal(signal.SIGUSR1)
        row = {"step": step.number, "epoch": step.epoch, "samples": index.tolist()}
        row |= {"digest": digest(), "lr": scheduler.get_last_lr()[0]}
        os.write(out, json.dumps(row).encode() + b"\n")
        if step.number == told.get("leave", -1):
            break


for _ in range(told.get("loops", 1)):
    train(told.get("epochs", 2))
print(json.dumps({"resumed": run.resumed, "from": run.resumed_from, "applied": run.applied}))
model = None
if world > 1:
    dist.destroy_process_group()
current().close()  # a fork of a test's runs no exit functions
