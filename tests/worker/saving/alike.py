"""Whether two states are the same: types of containers aside, every bit of every tensor."""

from typing import Any

import numpy as np
import torch


def alike(one: Any, other: Any) -> bool:
    """Compare by value; a tensor also by type, a key also by its type."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bits(one) == bits(other)
        )
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if isinstance(one, dict):
        keys = [(type(key), key) for key in one]
        return keys == [(type(key), key) for key in other] and all(
            alike(one[key], other[key]) for key in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in the order of its elements."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
