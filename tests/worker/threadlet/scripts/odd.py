"""An optimizer that a threadlet cannot look into; it trains all the same."""

import time

import torch


class Odd(torch.optim.SGD):
    """Raises an error whenever somebody but its own step wants to see its groups."""

    inside = False
    groups = ()

    @property
    def param_groups(self):
        if not self.inside:
            raise RuntimeError("not your business")
        return self.groups

    @param_groups.setter
    def param_groups(self, groups):
        self.groups = groups

    def step(self, closure=None):
        self.inside = True
        try:
            return super().step(closure)
        finally:
            self.inside = False


weight = torch.nn.Parameter(torch.ones(1))
Odd.inside = True
optimizer = Odd([weight], lr=0.1)
Odd.inside = False
for _ in range(40):
    weight.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.01)
print(float(weight.detach()))
