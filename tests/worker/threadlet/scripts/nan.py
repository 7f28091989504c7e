"""A loss that is not a number for a while, and infinite later."""

import torch

import torchloom.worker.run.run as loom
from torchloom.worker.threadlet.threadlet import current

run = loom.init()
losses = [1.0, 0.5, 0.25, float("nan"), float("nan"), 1.0, float("inf"), 1.0]
for step in run.steps(len(losses)):
    with step:
        step.log(loss=torch.tensor(losses[step.number]), other=float("nan"))
current().close()  # a fork of the tests leaves without
