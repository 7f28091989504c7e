"""A plain torch program of many kinds; `CHANGE` writes a change of lr into it, as one would.

It prints the weights it ends with, to the last bit, and the lr that each step used.
"""

import json
import os
import sys
import time

import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedules

KIND = os.environ["KIND"]
STEPS = int(os.environ.get("STEPS", "150"))
AT, TO = json.loads(os.environ.get("CHANGE", "[1000000, 0.0]"))
HOLD = os.environ.get("HOLD") == "1"
PAUSE = float(os.environ.get("PAUSE", "0"))
GATE = os.environ.get("GATE", "")  # a file to wait for in an early step

torch.manual_seed(7)
model = nn.Linear(4, 3)
other = nn.Linear(3, 1)
used = []
state = {"calls": 0, "base": None}


class Noisy(optim.SGD):
    """A user's own optimizer, which calls its parent's step."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(0.01)
        return super().step(closure)


class Fails(optim.SGD):
    """One step in five raises an error after it has begun; the loop takes it again."""

    def step(self, closure=None):
        state["tries"] = state.get("tries", 0) + 1
        if state["tries"] % 5 == 0:
            raise MemoryError
        return super().step(closure)


def make():
    parameters = (
        [*model.parameters()] if KIND == "two" else [*model.parameters(), *other.parameters()]
    )
    match KIND:
        case "adam":
            return optim.AdamW(parameters, lr=0.05, weight_decay=0.1)
        case "foreach":
            return optim.Adam(parameters, lr=0.05, foreach=True)
        case "fused":
            return optim.AdamW(parameters, lr=0.05, fused=True)
        case "tensor":
            return optim.Adam(parameters, lr=torch.tensor(0.05), capturable=False, foreach=False)
        case "subclass":
            optim.SGD(
                [nn.Parameter(torch.zeros(1))], lr=1.0
            )  # so that the parent's step has hooks too
            return Noisy(parameters, lr=0.05)
        case "raises":
            return Fails(parameters, lr=0.05)
        case "groups":
            groups = [{"params": model.parameters()}, {"params": other.parameters(), "lr": 0.2}]
            return optim.SGD(groups, lr=0.05)
        case "closure":
            return optim.LBFGS(parameters, lr=0.05, max_iter=2)
    return optim.SGD(parameters, lr=0.05, momentum=0.9)


def make_schedule():
    match KIND:
        case "lambda":
            return schedules.LambdaLR(optimizer, lambda i: 1 - i / (2 * STEPS))
        case "cosine":
            return schedules.CosineAnnealingLR(optimizer, STEPS)
        case "exponential":
            return schedules.ExponentialLR(optimizer, 0.99)
        case "onecycle":
            return schedules.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)
    return None


def take_step(one, closure=None):
    """Step as usual; with the change written in, by hand and in plain torch."""
    call = state["calls"]
    if one is not optimizer or call < AT:
        used.append(float(one.param_groups[0]["lr"]))
        one.step(closure) if closure else one.step()
    else:
        own = [group["lr"] for group in one.param_groups]
        if state["base"] is None:
            state["base"] = own[0]
        for group, value in zip(one.param_groups, own, strict=True):
            group["lr"] = TO * (value / own[0]) if HOLD else TO * (value / state["base"])
        used.append(float(one.param_groups[0]["lr"]))
        one.step(closure) if closure else one.step()
        for group, value in zip(one.param_groups, own, strict=True):
            group["lr"] = value
    state["calls"] += 1


optimizer = make()
second = optim.SGD(other.parameters(), lr=0.01) if KIND == "two" else None
schedule = make_schedule()
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5) if KIND == "amp" else None
if os.environ.get("WATCH") == "1":
    used_by_hook = []
    optimizer.register_step_pre_hook(
        lambda one, args, kwargs: used_by_hook.append(float(one.param_groups[0]["lr"]))
    )

for i in range(STEPS):
    while i == 20 and GATE and not os.path.exists(GATE):
        time.sleep(0.001)
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(8, 4, generator=generator)
    if KIND == "hand":
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - i / (2 * STEPS))
    loss = other(model(x)).pow(2).mean()
    if KIND == "accumulation":
        (loss / 4).backward()
        if i % 4 == 3:
            take_step(optimizer)
            optimizer.zero_grad()
    elif scaler is not None:
        scaler.scale(loss).backward()
        if i % 7 == 3:
            model.weight.grad[0, 0] = float("inf")
        scaler.unscale_(optimizer)
        before = scaler.get_scale()
        if not torch.isinf(model.weight.grad).any():
            used.append(float(optimizer.param_groups[0]["lr"]))
        if state["calls"] >= AT and not torch.isinf(model.weight.grad).any():
            own = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = used[-1] = TO
            scaler.step(optimizer)
            optimizer.param_groups[0]["lr"] = own
        else:
            scaler.step(optimizer)
        scaler.update()
        state["calls"] += scaler.get_scale() >= before
        optimizer.zero_grad()
    elif KIND == "closure":

        def again(x=x):
            optimizer.zero_grad()
            value = other(model(x)).pow(2).mean()
            value.backward()
            return value

        take_step(optimizer, again)
    else:
        loss.backward()
        try:
            take_step(optimizer)
        except MemoryError:
            if state["base"] is not None:  # written in by hand, it is to be put back by hand
                optimizer.param_groups[0]["lr"] = 0.05
            used.pop()
            take_step(optimizer)
        optimizer.zero_grad()
        if second is not None and i % 3 == 0:
            loss = other(model(x).detach()).sub(1).pow(2).mean()
            loss.backward()
            take_step(second)
            second.zero_grad()
    if schedule is not None:
        schedule.step()
    if PAUSE:
        time.sleep(PAUSE)

weights = [p.detach().numpy().tobytes().hex() for p in (*model.parameters(), *other.parameters())]
left = [float(group["lr"]) for group in optimizer.param_groups]
seen = used_by_hook if os.environ.get("WATCH") == "1" else used
print(json.dumps({"weights": weights, "left": left, "used": seen, "calls": state["calls"]}))
if "torchloom.worker.threadlet.threadlet" in sys.modules:
    sys.modules["torchloom.worker.threadlet.threadlet"].current().close()  # a fork leaves without
