"""A rank that says `loom.init()` and was started by anybody; it writes the lr of each step."""

import json
import os
import sys
import time

import torch

import torchloom as loom

out, steps = sys.argv[1], int(sys.argv[2])
rank = next((os.environ[n] for n in ("RANK", "OMPI_COMM_WORLD_RANK") if n in os.environ), "0")
run = loom.init(config={"temperature": 0.7})
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
used = []
optimizer.register_step_pre_hook(lambda one, *_: used.append(one.param_groups[0]["lr"]))
with open(f"{out}/rank-{rank}", "a", buffering=1) as file:
    file.write(json.dumps({"pid": os.getpid()}) + "\n")
    for step in run.steps(steps):
        with step:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            file.write(json.dumps([step.number, time.monotonic(), {"lr": used[-1]}, ""]) + "\n")
            time.sleep(0.005)
