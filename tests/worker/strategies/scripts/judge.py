"""The trainings of `cases.py` on one process, in plain torch."""

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, os.environ["SCRIPTS"])
from trained import CLIP, RATE, STEPS, batch, loss_of, made


def trained(kind):
    model = made(kind, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    losses, gradients, norms = [], {}, []
    for step in range(STEPS):
        inputs, targets = batch(kind, step)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        if step in (0, STEPS - 1):
            gradients[step] = {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return {"losses": losses, "gradients": gradients, "norms": norms}


found = {kind: trained(kind) for kind in json.loads(os.environ["KINDS"])}
torch.save(found, Path(os.environ["OUT"]) / "judge.pt")
