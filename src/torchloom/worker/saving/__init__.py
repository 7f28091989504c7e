"""Saving and loading: staging, shares, shard files, and the writer behind the training."""

from torchloom.worker.saving.loader import Loaded, hashed, load
from torchloom.worker.saving.saver import Saver
from torchloom.worker.saving.tree import Unsaveable

__all__ = ["Saver", "hashed", "load", "Loaded", "Unsaveable"]
