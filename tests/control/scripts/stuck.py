"""DDP over gloo, of which rank 1 gets stuck in step 20 of its first life, as `HOW` says.

It sleeps `NAP` seconds in each step. `STEPPING=api` says its steps itself. Each rank writes for
itself: its pid, then a line a step.
"""

import json
import os
import re
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

how = os.environ["HOW"]
life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
name = f"{os.environ['OUT']}/rank-{rank}" + (f".{life}" if life != "0" else "")
out = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")


def get_stuck():
    match how:
        case "sleep":
            time.sleep(1000)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "regex":
            begun = time.monotonic()
            length = 16
            while time.monotonic() - begun < 3.0:  # the last one takes more than half of it
                re.match(r"(a*)*b", "a" * length)
                length += 1


def take(step):
    if step == 20 and rank == 1 and life == "0":
        get_stuck()
    model(torch.ones(4, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    os.write(out, json.dumps([step, time.time(), {}, ""]).encode() + b"\n")
    time.sleep(float(os.environ.get("NAP", "0.02")))


if os.environ["STEPPING"] == "api":
    import torchloom as loom

    for step in loom.init().steps(1_000_000):
        with step:
            take(step.number)
else:
    for number in range(1_000_000):
        take(number)
