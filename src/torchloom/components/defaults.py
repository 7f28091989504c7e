"""Defaults of components."""

from torchloom import settings

# Holds torchrun and a Python with torch, which is all that dist.ddp and dist.spmd ask of an image.
IMAGE = "pytorch/pytorch:latest"


def log_level() -> str:
    """Return the level that this shell's LOGLEVEL asks for, so that replicas log alike."""
    return settings.environment().get("LOGLEVEL", "WARNING")
