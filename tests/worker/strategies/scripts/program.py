"""A program that has its model wrapped by a strategy; each rank writes down what it was dealt."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom
from torchloom.worker.threadlet.threadlet import current

told = json.loads(os.environ["TOLD"])


class Net(nn.Module):
    """Two layers of the program's own."""

    def __init__(self, is_tied=False):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(8, 12), "down": nn.Linear(12, 8)}) for _ in range(2)
        )
        if is_tied:
            self.layers[1]["up"].weight = self.layers[0]["up"].weight

    def forward(self, x):
        for layer in self.layers:
            x = layer["down"](layer["up"](x).relu())
        return x


dist.init_process_group("gloo")
torch.manual_seed(0)
run = loom.init()
try:
    net = run.wrap(Net(told.get("tied", False)), **told.get("wrap", {}))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    samples = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    loader = run.loader(list(zip(range(16), samples, strict=True)), batch_size=2)
    dealt = []
    for step in run.steps(loader):
        with step:
            numbers, inputs = step.batch
            loss = net(inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dealt += numbers.tolist()
    kinds = sorted({type(each).__name__ for each in net.parameters()})
    with open(f"{os.environ['OUT']}/rank-{dist.get_rank()}", "w") as out:
        json.dump({"dealt": dealt, "kinds": kinds, "kind": type(net).__name__}, out)
finally:
    current().close()  # a fork of the tests leaves without
    dist.destroy_process_group()
