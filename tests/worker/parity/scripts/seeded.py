import witness  # noqa: F401, I001
import random

import numpy
import torch

random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
print(
    random.random(), numpy.random.rand(), torch.rand(1).item(), numpy.random.default_rng(1).random()
)
