"""Save and load checkpoints: staging memory, shard files, a background writer, inspection.

`saver.py` is what a rank saves with, `loader.py` puts a checkpoint together again.
"""

from torchloom.worker.saving.loader import Loaded, Reader, hashed, load
from torchloom.worker.saving.saver import Saver
from torchloom.worker.saving.tree import Unsaveable

__all__ = ["Saver", "hashed", "load", "Loaded", "Reader", "Unsaveable"]
