"""What every rank has alike though nobody says so, such as an average of weights."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchloom.worker.running.nested import tensors


def is_average(state: Any, models: Iterable[Iterable[Tensor]]) -> bool:
    """Tell whether a state has a tensor for each weight of one of these models."""
    there = Counter(tensor.shape for tensor in tensors(state) if tensor.is_floating_point())
    wanted = (Counter(weight.shape for weight in model) for model in models)
    return any(shapes and shapes <= there for shapes in wanted)
