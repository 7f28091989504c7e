"""A plain training by number, on one process or several, which `loom convert` is given.

Its data follow from the number of a step and from a generator of its own, so it ends with the same
weights before and after the conversion. OUT and HIT (rank, step, place) are as in epochs.py.
"""

import hashlib
import json
import math
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn

OUT, RANK = os.environ["OUT"], int(os.environ.get("RANK", "0"))
STEPS, PARTS, CLIP = 24, 3, 1.0
now = {"step": 0}


def hurt(place):
    """End this process here, if that is meant and has not happened."""
    here = f"{RANK}:{now['step']}:{place}"
    if os.environ.get("HIT") == here and not os.path.exists(f"{OUT}/hit"):
        while not os.path.exists(f"{OUT}/go"):  # until a loss means no restart
            time.sleep(0.005)
        open(f"{OUT}/hit", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def digest(model):
    """Return what no other weights have."""
    found = hashlib.sha256()
    for each in model.parameters():
        found.update(each.detach().numpy().tobytes())
    return found.hexdigest()[:20]


def write(**facts):
    """Append a line in one piece."""
    file = os.open(f"{OUT}/rank-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, (json.dumps({"pid": os.getpid(), **facts}) + "\n").encode())
    os.close(file)


torch.set_num_threads(1)
write(begun=True)
ddp = int(os.environ.get("WORLD_SIZE", "1")) > 1
if ddp:
    dist.init_process_group("gloo")
torch.manual_seed(7)
noise = torch.Generator().manual_seed(RANK)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5)
if ddp:
    model = nn.parallel.DistributedDataParallel(model, device_ids=None)
raw_model = model.module if ddp else model


def get_lr(step):
    """Return the learning rate of a step: a cosine."""
    return 0.001 + 0.005 * (1 + math.cos(math.pi * step / STEPS))


def get_batch(step):
    """Return samples that follow from the step's number, with some noise."""
    x = torch.linspace(-1, 1, 32).reshape(4, 8) * math.sin(step + 1)
    x = x + 0.1 * torch.rand(4, 8, generator=noise)
    return x, x.sum(1, keepdim=True)


it = 0
while True:
    now["step"] = it
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    for part in range(PARTS):
        if ddp:
            model.require_backward_grad_sync = part == PARTS - 1
        x, y = get_batch(it * PARTS + part)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
            loss = loss / PARTS
        hurt(f"part-{part}")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    hurt("gradients")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if it % 5 == 0 and ddp:
        mean = loss.detach().clone()
        hurt("mean")
        dist.all_reduce(mean)
        if RANK == 0:
            print(f"step {it} loss {mean.item() * PARTS / 2:.4f}")
    write(step=it, digest=digest(raw_model))
    it += 1
    if it >= STEPS:
        break
write(final=digest(raw_model))
if ddp:
    del model, raw_model  # the group must outlive what uses it
    dist.destroy_process_group()
    os._exit(0)
