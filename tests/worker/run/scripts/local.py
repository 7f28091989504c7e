"""Ranks that step by themselves, and plain torch that trains the models of all ranks in one."""

import copy
import json
import os

import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom

told = json.loads(os.environ["TOLD"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
run = loom.init()
torch.manual_seed(1 + rank)  # rank 0's weights are taken
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
model = run.wrap(net, compression={"sync_every": told["every"]})
anchor = copy.deepcopy(net)
kinds = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1), "adamw": torch.optim.AdamW}
optimizer = kinds[told["optimizer"]](model.parameters())
run.track(optimizer=optimizer)
guess = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))


def data(step: int, of: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + of))
    return inputs, (inputs @ guess).argmax(1)


def train(one: nn.Module, stepper: torch.optim.Optimizer, step: int, of: int) -> float:
    inputs, labels = data(step, of)
    loss = nn.functional.cross_entropy(one(inputs), labels)
    loss.backward()
    stepper.step()
    stepper.zero_grad()
    return loss.item()


for step in run.steps(told["steps"]):
    with step:
        loss = train(model, optimizer, step.number, rank)

judges = [copy.deepcopy(anchor) for _ in range(world)]
steppers = [kinds[told["optimizer"]](each.parameters()) for each in judges]
outer = torch.optim.SGD(anchor.parameters(), lr=0.7, momentum=0.9, nesterov=True)
for number in range(told["steps"]):
    for of in range(world):
        judged = train(judges[of], steppers[of], number, of)
    if (number + 1) % told["every"] == 0 or number + 1 == told["steps"]:
        outer.zero_grad()
        for weight, *others in zip(
            anchor.parameters(), *(each.parameters() for each in judges), strict=True
        ):
            weight.grad = sum(weight.detach() - other.detach() for other in others) / world
        outer.step()
        for each in judges:
            each.load_state_dict(anchor.state_dict())

gaps = [
    float((mine - other).abs().max())
    for mine, other in zip(net.parameters(), anchor.parameters(), strict=True)
]
print(json.dumps({"gap": max(gaps), "loss": loss, "judged": judged}))
model = None
dist.destroy_process_group()
loom.init().finish()
