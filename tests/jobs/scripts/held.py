"""A dataset that has no more to give after a while, until the file `enough` is there.

Each rank that makes one writes down who it is.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

FREELY = 64 * 25  # samples that a rank gets at once


class Samples(Dataset):
    """Points around ten corners of a cube."""

    classes = 10

    def __init__(self):
        self._given, self._folder = 0, os.environ["OUT"]
        who = {"pid": os.getpid(), "rank": int(os.environ["RANK"])}
        who |= {"world": dist.get_world_size(), "backend": dist.get_backend()}
        with open(f"{self._folder}/rank-{who['rank']}", "w") as file:
            file.write(f"{json.dumps(who)}\n")

    def __len__(self):
        return 4 * 64 * 20

    def __getitem__(self, number):
        while self._given >= FREELY and not os.path.exists(f"{self._folder}/enough"):
            time.sleep(0.005)
        self._given += 1
        target = number % self.classes
        corner = torch.tensor([float(target >> bit & 1) for bit in range(4)])
        noise = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return corner + 0.1 * noise, target


def samples(hyperparameters):
    return Samples()
