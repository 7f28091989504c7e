"""A loop that goes on from its own checkpoint; it writes each step's own lr and the one used."""

import json
import os
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
out, place = Path(os.environ["OUT"]), Path(os.environ["PLACE"])
model = nn.Linear(8, 1)
kind = getattr(torch.optim, os.environ.get("OPTIMIZER", "AdamW"))
optimizer = kind(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
begin = 0
if place.exists():
    saved = torch.load(place)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    begin = saved["step"]
used = []
optimizer.register_step_post_hook(lambda one, *_: used.append(one.param_groups[0]["lr"]))
run = None
if os.environ.get("NAMED"):
    import torchloom as loom

    run = loom.init()
with out.open("a") as file:
    for step in range(begin, int(os.environ["STEPS"])):
        if run is not None:
            run.step = step
        own = optimizer.param_groups[0]["lr"]
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        file.write(json.dumps([step, own, used[-1]]) + "\n")
parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
states = {name: part.state_dict() for name, part in parts.items()}
torch.save({**states, "step": int(os.environ["STEPS"])}, place)
