"""A model and a dataset of the user's own; each rank writes down what its steps did.

A line a step: the learning rate and momentum that the optimizer used, and the weights' digest.
"""

import hashlib
import json
import os

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def net(hyper):
    model = torch.nn.Sequential(
        torch.nn.Linear(6, hyper.get("own_width", 8)),
        torch.nn.Tanh(),
        torch.nn.Linear(hyper.get("own_width", 8), 3),
    )
    path = f"{os.environ['OUT']}/rank-{os.environ.get('RANK', '0')}"
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    used = []

    def before(optimizer, args, kwargs):
        group = optimizer.param_groups[0]
        used[:] = [group["lr"], group.get("momentum")]

    def after(optimizer, args, kwargs):
        weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        row = [*used, hashlib.blake2b(weights, digest_size=8).hexdigest()]
        os.write(out, json.dumps(row).encode() + b"\n")

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    return model


class Line(torch.utils.data.Dataset):
    """Points of a line: a target is a number, not a class."""

    def __len__(self):
        return 64

    def __getitem__(self, at):
        x = torch.full((6,), at / 64)
        return x, 2 * x[:1] + 1


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.linear(x)

    def loss(self, outputs, targets):
        return torch.nn.functional.mse_loss(outputs, targets)


def line(hyper):
    return Line()


def regression(hyper):
    return Regression()


def noisy(hyper):
    """Drop values, and keep averages: all that a run draws or only one rank has."""
    model = torch.nn.Sequential(net(hyper)[0], torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3))
    return torch.nn.Sequential(*model, torch.nn.Linear(8, 3))


class Lost(Regression):
    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * float("nan")


def lost(hyper):
    return Lost()


def drawn(hyper):
    """Return samples that are drawn when they are asked for, and say which."""
    x = torch.randn(40, 6)
    with open(f"{os.environ['OUT']}/drawn-{os.environ['RANK']}", "w") as file:
        file.write(repr(x.sum().item()))
    return torch.utils.data.TensorDataset(x, torch.arange(40) % 3)


def failing(hyper):
    if os.environ["RANK"] == "1":
        raise FileNotFoundError("no such data here")
    return drawn(hyper)
