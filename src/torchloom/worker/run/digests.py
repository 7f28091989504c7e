"""Digests of all tensors at each step boundary, to compare two runs bit by bit.

Each rank has one file with one JSON line per boundary; lines are written atomically.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from torchloom.worker.run.parts import local_of


class Digests:
    """A rank's file of digests."""

    def __init__(self, folder: Path, rank: int, generation: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"rank_{rank}.jsonl", flags, 0o600)
        self._generation = generation
        self._last = -1

    def move_on(self, generation: int) -> None:
        """Continue in another generation; its first step is written again."""
        self._generation, self._last = generation, -1

    def write(self, step: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write the digests of all tensors before a step, once."""
        if step == self._last:
            return
        self._last = step
        each = {name: digest(tensor) for name, tensor in tensors}
        whole = hashlib.blake2b("".join(each.values()).encode(), digest_size=16).hexdigest()
        line = {"generation": self._generation, "step": step, "digest": whole, "tensors": each}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def digest(tensor: Tensor) -> str:
    """Return the digest of a tensor's bits, independent of its device; of a rank's part of it."""
    flat = local_of(tensor).detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().data, digest_size=16).hexdigest()
