"""Programs as people write them, of several kinds, with DDP; none knows of torchloom.

`CHANGE` writes a change of the first optimizer's lr into the program, as one would by hand. Each
rank writes for itself, a line a step of that optimizer: how many steps its optimizers had taken,
its clock, the lr that the step used, a digest of the weights behind it.
"""

import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

KIND = os.environ["KIND"]
ROUNDS = 120
PAUSE = float(os.environ.get("PAUSE", "0"))
AT, TO = json.loads(os.environ.get("CHANGE", "[1000000, 0.0]"))

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model, critic = nn.Linear(4, 3), nn.Linear(3, 1)
parallel = DistributedDataParallel(nn.Sequential(model, critic))
critical = DistributedDataParallel(critic)
taken, base = 0, None
used = {}


class Noisy(optim.SGD):
    """A user's own optimizer, which calls its parent's step."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(0.01)
        return super().step(closure)


first = Noisy if KIND == "subclass" else optim.SGD
optimizer = first(parallel.parameters(), lr=0.05, momentum=0.9)
second = optim.SGD(critical.parameters(), lr=0.01)
schedule = {
    "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS),
    "onecycle": lambda: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=ROUNDS + 1),
}.get(KIND, lambda: None)()
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
optimizer.register_step_pre_hook(
    lambda one, args, kwargs: used.update(lr=one.param_groups[0]["lr"])
)
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")


def step(take):
    """Take a step of the first optimizer; with the change written in, if there is one."""
    global base, taken
    group, own = optimizer.param_groups[0], optimizer.param_groups[0]["lr"]
    used.clear()
    if taken < AT:
        take()
    else:
        base = own if base is None else base
        group["lr"] = TO * (own / base)
        take()
        group["lr"] = own
    if used:  # a scaler may have skipped it
        weights = b"".join(p.detach().numpy().tobytes() for p in parallel.parameters())
        row = [taken, time.monotonic(), used, hashlib.blake2b(weights, digest_size=8).hexdigest()]
        os.write(out, json.dumps(row).encode() + b"\n")
        taken += 1


for i in range(ROUNDS):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i * 8 + rank))
    if KIND == "accumulation" and i % 4 != 3:
        with parallel.no_sync():
            (parallel(x).pow(2).mean() / 4).backward()
        time.sleep(PAUSE)
        continue
    loss = parallel(x).pow(2).mean()
    if KIND == "amp":
        scaler.scale(loss).backward()
        if i % 7 == 3:
            model.weight.grad[0, 0] = float("inf")
        step(lambda: scaler.step(optimizer))
        scaler.update()
    else:
        loss.backward()
        step(optimizer.step)
    optimizer.zero_grad()
    if KIND == "two" and i % 3 == 0:
        critical(model(x).detach()).sub(1).pow(2).mean().backward()
        second.step()
        second.zero_grad()
        taken += 1
    if schedule is not None:
        schedule.step()
    time.sleep(PAUSE)
with open(f"{os.environ['OUT']}/taken-{rank}", "w") as file:
    file.write(str(taken))
while "LEAVE" in os.environ and not os.path.exists(os.environ["LEAVE"]):
    time.sleep(0.01)
