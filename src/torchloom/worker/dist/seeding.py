"""One call that seeds every source of chance a training script draws from."""

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """Seed `random`, torch on all its devices, and numpy where it is used."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)  # it takes no larger one
