"""A program that says its steps itself, with knobs, handlers and numbers."""

import json
import os
import time

import torch

import torchloom.worker.run.run as loom
from torchloom.worker.threadlet.threadlet import current

run = loom.init(project="gpt", config={"temperature": 0.7, "name": "x"}, replica="hi")
run.knob("clip", 1.0, min=0.0, max=10.0)
heard, temperatures, saved = [], [], []
run.on("sync_every", lambda value: heard.append((here[0], value)), int)
run.on("temperature", lambda value: heard.append((here[0], value)))
run.on("broken", lambda value: 1 / 0, float)
run.on("checkpoint", saved.append)
here = [-1]
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.5)
lrs = []
optimizer.register_step_pre_hook(lambda one, args, kwargs: lrs.append(one.param_groups[0]["lr"]))
batches = [torch.tensor(float(i)) for i in range(int(os.environ.get("BATCHES", "50")))]
numbers = []
total = torch.zeros(())

source = batches if os.environ.get("SOURCE") != "stream" else (one for one in batches)

for step in run.steps(source, epochs=2):
    with step:
        numbers.append((step.number, step.epoch, float(step.batch)))
        here[0] = step.number + 1
        temperatures.append(run.config["temperature"])
        clip = run.config["clip"]  # which is what a change of it waits for
        loss = parameter * step.batch
        for _ in range(2):  # two optimizer steps are one step of the program
            optimizer.zero_grad()
            (parameter * 0.0).sum().backward()
            optimizer.step()
        total += 1  # in place: what was logged before must not change
        step.log(loss=loss, total=total, half=step.number / 2)
        time.sleep(float(os.environ.get("PAUSE", "0.002")))
    if here[0] == int(os.environ.get("BREAK_AFTER", "-1")):
        break

print(
    json.dumps(
        {
            "numbers": numbers,
            "heard": heard,
            "temperatures": temperatures,
            "lrs": lrs,
            "saved": saved,
            "applied": run.applied,
            "config": dict(run.config),
        }
    )
)
current().close()  # a fork of the tests leaves without
