"""Made-up pictures of ten kinds: nothing to download, and something to learn.

A sample is the picture of its class in noise. The noise is cut out of one long strip at two places
that the sample's number gives, so any sample is made in an instant and none has to be kept.
"""

import torch
from torch import Tensor

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError

SAMPLES = 60_000
MOST = 10_000_000
CLASSES = 10
SIDE = 28
SIZE = SIDE * SIDE
_STRIP = (1 << 20) + SIZE
_COARSE = 7  # points on a side of a picture before it is drawn large
_CONTRAST = 0.15  # of a picture, against noise of 1
_STRIDES = (0x9E3779B1, 0x85EBCA77)  # odd: as far apart as any two places


class Synthetic:
    """Samples made when they are asked for, by seed and number alone."""

    kind = "features"
    shape: tuple[int, ...] = (SIZE,)
    classes = CLASSES

    def __init__(self, count: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        coarse = torch.randn(CLASSES, 1, _COARSE, _COARSE, generator=chance)
        large = torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear").flatten(1)
        self._pictures = _CONTRAST * large / large.std(dim=1, keepdim=True)
        self._noise = torch.randn(_STRIP, generator=chance).unfold(0, SIZE, 1)  # a view, no copy
        self._labels = torch.randint(CLASSES, (count,), generator=chance)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these samples and their classes."""
        labels = self._labels[indices]
        here, there = (indices * stride % len(self._noise) for stride in _STRIDES)
        noise = (self._noise[here] + self._noise[there]) * 0.5**0.5
        return self._pictures[labels] + noise, labels


def synthetic_samples(name: str, seed: int) -> Synthetic:
    """Return as many samples as the name says: `synthetic`, or `synthetic:N`."""
    _, colon, said = name.partition(":")
    if not colon:
        return Synthetic(SAMPLES, seed)
    if not (said.isascii() and said.isdigit() and len(said) <= 9 and 1 < int(said) <= MOST):
        problem = f"write a number of samples from 2 to {MOST}, as in synthetic:5000"
        raise SpecError("dataset", f"{shorten(name)!r}: {problem}")
    return Synthetic(int(said), seed)
