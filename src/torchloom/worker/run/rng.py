"""Seeds for the random number generators, from (seed, rank, step) or (seed, epoch, index).

No RNG state is stored: a repeated step, in this process or a later one, is seeded alike.
"""

import random
import sys
from hashlib import blake2b
from typing import Any

import torch


def mix(*parts: int | str) -> int:
    """Return a 63-bit hash of these parts."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_generators(number: int) -> None:
    """Seed the default generators of torch and `random`, and of numpy if it is imported.

    `torch.manual_seed` would take ten times as long.
    """
    torch.default_generator.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)  # it takes no larger one
    if has_cuda():
        torch.cuda.manual_seed(number)


def has_cuda() -> bool:
    """Tell whether this process uses CUDA, without initializing it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class RngSource:
    """The RNG state of all these generators at one moment."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._torch = torch.get_rng_state()
        self._random = random.getstate()
        self._numpy: Any = numpy.random.get_state() if numpy is not None else None
        self._cuda = torch.cuda.get_rng_state_all() if has_cuda() else []

    def put_back(self) -> None:
        """Restore the state of all generators."""
        torch.set_rng_state(self._torch)
        random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
