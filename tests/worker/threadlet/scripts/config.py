"""A program with its arguments in the config, whose weight moves by the lr of each step."""

import json
import os
import time

import torch

import torchloom.worker.run.run as loom
from torchloom.worker.threadlet.threadlet import current

MODE = os.environ.get("MODE", "")
run = loom.init(
    config={"lr": 0.5, "epochs": 400, "temperature": 0.7, "device": torch.device("cpu")}
)
run.knob("clip", 1.0)
weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
optimizer = torch.optim.SGD([weight], lr=run.config.lr)
if MODE == "pinned":
    optimizer.register_step_pre_hook(lambda one, *_: one.param_groups[0].update(lr=0.5))
moves, shown, clips = [], [], []


def train(step):
    """Take one step with a gradient of 1 and note what it did to the weight."""
    before = weight.item()
    shown.append(run.config["lr"])
    if MODE == "follows":  # as programs do that warm up by hand
        optimizer.param_groups[0]["lr"] = run.config["lr"] * min(1.0, (step + 1) / 4)
    if os.path.exists(os.environ["OUT"] + ".read"):
        clips.append((step, run.config["clip"], run.config["temperature"]))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    moves.append(before - weight.item())
    if MODE == "late":  # for the next step
        optimizer.param_groups[0]["lr"] = run.config["lr"]
    time.sleep(0.002)


if MODE == "attached":
    while not os.path.exists(os.environ["OUT"] + ".end"):
        train(len(moves))
else:
    for step in run.steps(1_000_000):
        with step:
            train(step.number)
print(json.dumps({"moves": moves, "shown": shown, "clips": clips}))
current().close()  # a fork of the tests leaves without
