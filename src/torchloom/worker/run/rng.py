"""Where chance comes from: numbers that follow from (seed, rank, step) or (seed, epoch, index).

Nothing has to be stored to draw the same again: a step that is repeated, in this life of a rank or
in a later one, begins with generators in the same state.
"""

import random
import sys
from hashlib import blake2b
from typing import Any

import torch


def mix(*parts: int | str) -> int:
    """Return a number of 63 bits that these parts give, and no others do."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_generators(number: int) -> None:
    """Seed what programs draw from by default: torch, `random`, and numpy where it is used.

    Not by `torch.manual_seed`, which takes ten times as long.
    """
    torch.default_generator.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)  # it takes no larger one
    if has_cuda():
        torch.cuda.manual_seed(number)


def has_cuda() -> bool:
    """Tell whether this process computes on a GPU; one that does not is not made to."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class RngSource:
    """The state of all these generators at one moment."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._torch = torch.get_rng_state()
        self._random = random.getstate()
        self._numpy: Any = numpy.random.get_state() if numpy is not None else None
        self._cuda = torch.cuda.get_rng_state_all() if has_cuda() else []

    def put_back(self) -> None:
        """Have everybody draw what was to be drawn then."""
        torch.set_rng_state(self._torch)
        random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
