"""Begin to read a checkpoint before it is asked for: its program has a model to make meanwhile."""

import threading

from torchloom.checkpoint.errors import CheckpointError
from torchloom.checkpoint.storage import Storage
from torchloom.worker.saving.loading import Contents, hashed

Part = tuple[int, int]  # the i-th of every n shards


class Ahead:
    """A part of a checkpoint's shards, read and hashed by a thread of its own."""

    def __init__(self, storage: Storage, step: int, part: Part) -> None:
        self._asked = (step, part)
        self._held: Contents | None = None
        self._thread = threading.Thread(
            target=self._read, args=(storage, step, part), name="loom-ahead", daemon=True
        )
        self._thread.start()

    def take(self, step: int, part: Part) -> Contents | None:
        """Return these shards, once; nothing where others were read, or they could not be.

        Whoever reads them then is told why.
        """
        if (step, part) != self._asked:
            return None
        self._thread.join()
        held, self._held = self._held, None
        return held

    def _read(self, storage: Storage, step: int, part: Part) -> None:
        try:
            self._held = hashed(storage, step, part)
        except CheckpointError:
            self._held = None
