"""A loop that names its project and config and logs its loss; each rank writes what it logged."""

import json
import os
import time

import torch

import torchloom as loom

rank = int(os.environ["RANK"])
steps = int(os.environ.get("STEPS", "1000000"))
out = os.open(f"{os.environ['OUT']}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps({"pid": os.getpid()}).encode() + b"\n")
torch.manual_seed(rank)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = loom.init(project="toys", config={"temperature": 0.7})
for step in run.steps(steps):
    with step:
        loss = model(torch.randn(4, 4)).pow(2).mean() * run.config["temperature"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)
        time.sleep(0.003)
        line = [step.number, time.monotonic(), {"loss": loss.item()}, ""]
        os.write(out, json.dumps(line).encode() + b"\n")
