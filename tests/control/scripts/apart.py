"""Ranks that nothing aligns: LocalSGD that averages the weights every SYNC steps, or never.

`STEPPING=api` says its steps itself, `attached` has none but those of its optimizers. Each rank
writes for itself, a line a step: step, its clock, the values it used, a digest of its weights.
"""

import hashlib
import json
import os
import threading
import time

import torch
import torch.distributed as dist

world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
sync = int(os.environ.get("SYNC", "0"))
pause = json.loads(os.environ.get("PAUSES", "[]")) or [0.002] * world
evaluation = float(os.environ.get("EVALUATION", "0")) if rank == 1 else 0.0
trains = os.environ.get("TRAINS", "1") == "1"
stepping = os.environ.get("STEPPING", "api")
optimizers = int(os.environ.get("OPTIMIZERS", "1"))
loss = os.environ.get("LOSS", "")
life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

if sync:
    dist.init_process_group("gloo")
torch.manual_seed(rank)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
others = [torch.optim.SGD(model.parameters(), lr=0.0) for _ in range(optimizers - 1)]
config = {"temperature": 0.7}
used = dict(config, lr=0.05)
optimizer.register_step_pre_hook(
    lambda one, args, kwargs: used.update(lr=one.param_groups[0]["lr"])
)
name = f"{os.environ['OUT']}/rank-{rank}" + (f".{life}" if life != "0" else "")
out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")


def elsewhere():
    """Take the steps of a second optimizer beside the main thread."""
    second = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    while True:
        second.step()
        time.sleep(0.002)


def take(step):
    """Do one step of the program and write what it used."""
    if trains:
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step * 8 + rank))
        model(x).pow(2).mean().backward()
        for one in (optimizer, *others):
            one.step()
        optimizer.zero_grad()
    if sync and step % sync == sync - 1:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= world
    if evaluation and step == 30:
        time.sleep(evaluation)
    if pause[rank]:
        time.sleep(pause[rank])
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters()) if trains else b""
    digest = hashlib.blake2b(weights, digest_size=8).hexdigest()
    os.write(out, json.dumps([step, time.monotonic(), used, digest]).encode() + b"\n")


if os.environ.get("THREADS") == "1":
    threading.Thread(target=elsewhere, daemon=True).start()
if stepping == "attached":
    for number in range(1_000_000):
        take(number)
else:
    from torchloom.worker.run import run as loom

    run = loom.init(config=config)
    for step in run.steps(1_000_000):
        with step:
            used["temperature"] = run.config["temperature"]
            take(step.number)
            if loss:  # one that is easy to have rise
                step.log(loss=used[loss])
