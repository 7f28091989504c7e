"""Why a run that goes on may not end with the bits of an undisturbed one."""

import os
from typing import Any

import torch

from torchloom.worker.running import peers
from torchloom.worker.running.saves import versions
from torchloom.worker.running.things import Things

_FIXED = "NCCL_ALGO"  # NCCL adds up in one order only when it is told which


def differences(loaded: Any, things: Things, world_size: int) -> list[str]:
    """Return what is not as it was, or cannot be told to be."""
    found = []
    if not loaded.exact_world:
        found.append(f"world size {loaded.manifest.world_size} -> {world_size}")
    if not things.models:
        found.append("no model is wrapped by run.wrap")
    found += [
        f"{name} {was} -> {versions()[name]}"
        for name, was in loaded.manifest.versions.items()
        if name == "torch" and was != versions()[name]
    ]
    if peers.backend() not in ("", "gloo") and _FIXED not in os.environ:
        found.append(f"{peers.backend()} may add up in another order: set {_FIXED}")
    if things.devices() - {"cpu"} and not torch.are_deterministic_algorithms_enabled():
        found.append("torch.use_deterministic_algorithms is off")
    return found
