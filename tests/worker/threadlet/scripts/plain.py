"""A plain loop that knows nothing of torchloom."""

import os
import time

import torch

optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
for _ in range(int(os.environ.get("STEPS", "20"))):
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    optimizer.step()
    time.sleep(float(os.environ.get("PAUSE", "0")))
print(float(optimizer.param_groups[0]["params"][0].detach()))
