"""Training programs of the usual kinds, with nothing of torchloom in them.

Each writes to a file of its own, step by step: its process, its step, the lr that its schedule
wants, the lr that a weight shows, and its loss. It waits before the step that the file `hold`
names. With a file `saved` it continues where the program that wrote it was then.
"""

import json
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

KIND, OUT = os.environ["KIND"], Path(os.environ.get("FILES") or os.environ["OUT"])
STEPS, EVERY, WIDTH, LR = int(os.environ["STEPS"]), int(os.environ.get("EVERY", "1000")), 8, 0.1
ADAM = {"lr": LR, "betas": (0.0, 0.0), "weight_decay": 0.0}  # each weight moves by the lr
IS_SHARDED = KIND in ("FSDP2", "TP")
SAVED = OUT / ("saved-" + os.environ["RANK"] if IS_SHARDED else "saved")


def held(step):
    try:
        at = int((OUT / "hold").read_text() or 1 << 60)
    except FileNotFoundError:
        return False
    return step >= at


def local(tensor):
    """Return this rank's part of a parameter or of its gradient."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shown(was):
    """Return the lr that a weight shows after a step."""
    moved, grad = was - local(weight).detach(), local(weight.grad)
    return (moved.abs().max() if IS_ADAM else moved.norm() / grad.norm()).item()


def save(step):
    """Save for another process, as programs do it themselves."""
    if not IS_SHARDED and dist.get_rank():
        return
    states = {"schedule": schedule.state_dict(), "step": step}
    if IS_SHARDED:  # each rank its parts
        states["lr"] = optimizer.param_groups[0]["lr"]
        states["weights"] = [local(part).detach() for part in model.parameters()]
        states["moments"] = [
            {name: local(value) for name, value in optimizer.state[part].items()}
            for part in model.parameters()
        ]
    else:
        states |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states, SAVED.with_suffix(".partial"))
    SAVED.with_suffix(".partial").rename(SAVED)


def restore():
    """Continue where another process has saved; return its step."""
    saved = torch.load(SAVED)
    schedule.load_state_dict(saved["schedule"])
    if not IS_SHARDED:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["step"]
    optimizer.param_groups[0]["lr"] = saved["lr"]
    for part, weights, moments in zip(
        model.parameters(), saved["weights"], saved["moments"], strict=True
    ):
        local(part).detach().copy_(weights)
        for name, value in moments.items():
            whole = torch.zeros_like(part) if name != "step" else value
            local(whole).copy_(value)
            optimizer.state[part][name] = whole
    return saved["step"]


def batch(step):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank() * (KIND != "TP"))
    x = torch.randn(16, WIDTH, generator=generator)
    return x, x.sum(1, keepdim=True)


def model_of():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    if KIND == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        for part in model[0], model[2]:
            fully_shard(part)
        return fully_shard(model)
    if KIND == "TP":
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return DistributedDataParallel(model)


def own_lr(step):
    """nanoGPT's schedule: a warmup, then a cosine."""
    if step < 5:
        return LR * (step + 1) / 6
    return 0.01 + 0.5 * (1 + math.cos(math.pi * (step - 5) / 60)) * (LR - 0.01)


def trained(step):
    """Train for one step; return its loss, as the program computes it."""
    if KIND != "nanoGPT":
        inputs, wanted = batch(step)
        loss = functional.mse_loss(model(inputs), wanted)
        loss.backward()
        return loss.item()
    total = 0.0
    for micro in range(2):
        model.require_backward_grad_sync = micro == 1
        inputs, wanted = batch(2 * step + micro)
        loss = functional.mse_loss(model(inputs), wanted) / 2
        total += loss.item()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    return total


dist.init_process_group("gloo")
model = model_of()
IS_ADAM = "ADAM" in os.environ
if IS_ADAM:
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
scaler = torch.amp.GradScaler("cpu", enabled=False)
weight, step = model.parameters().__next__(), 0
if SAVED.exists():
    step = restore()
with (OUT / f"starts-{dist.get_rank()}").open("a") as file:
    file.write(f"{os.getpid()}\n")
with (OUT / f"steps-{dist.get_rank()}").open("a") as file:
    while step < STEPS:
        while held(step):
            time.sleep(0.005)
        if KIND == "nanoGPT":
            for group in optimizer.param_groups:
                group["lr"] = own_lr(step)
        own, was = optimizer.param_groups[0]["lr"], local(weight).detach().clone()
        loss = trained(step)
        scaler.step(optimizer)
        scaler.update()
        moved = shown(was)
        optimizer.zero_grad(set_to_none=True)
        if KIND != "nanoGPT":
            schedule.step()
        file.write(json.dumps([os.getpid(), step, own, moved, loss]) + "\n")
        file.flush()
        step += 1
        if step % EVERY == 0:
            save(step)
save(step)
dist.barrier()
dist.destroy_process_group()
