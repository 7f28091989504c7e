"""An optimizer whose groups nobody may change from outside; it trains all the same."""

import json
import time

import torch


class Frozen(dict):
    def __setitem__(self, name, value):
        raise TypeError("frozen")


weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.125)
optimizer.param_groups[0] = Frozen(optimizer.param_groups[0])
for _ in range(200):
    weight.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.003)
print(json.dumps({"lr": optimizer.param_groups[0]["lr"], "moved": float(weight.detach())}))
