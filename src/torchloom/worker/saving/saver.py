"""What a rank saves with: a copy into staging memory, everything else behind the training."""

import os
import time
from collections.abc import Mapping
from typing import Any

from torchloom.checkpoint.layout import Draft
from torchloom.checkpoint.storage import Storage
from torchloom.worker.saving.crowd import is_crowded
from torchloom.worker.saving.image import Image, pickled, signature
from torchloom.worker.saving.shares import deal
from torchloom.worker.saving.staging import Staging
from torchloom.worker.saving.tree import Flat
from torchloom.worker.saving.writer import Tell, Work, Writer


class Saver:
    """One rank's part of every checkpoint: its share of what all have, and its own.

    `tell` hears `checkpoint_shard` and `checkpoint_failed`, mostly from the writer's thread.
    `patience` is how long a store may take no byte before a save goes without it.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        rank: int,
        world_size: int,
        generation: int,
        attempt: int,
        tell: Tell,
        patience: float = 30.0,
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._generation, self._attempt = generation, attempt
        self._tell = tell
        self._patience = patience
        self._staging = Staging()
        self._image: Image | None = None
        self._writer = Writer(storage, tell)
        self._process = os.getpid()

    def prepare(self, shared: Any, own: Any) -> None:
        """Have the staging memory for state like this, so that its first save only copies."""
        self._check_process()
        if self._writer.claim(self._patience):
            part = _Part(shared, own, self._rank, self._world_size)
            self._image_of(part, part.rest(0))

    def save(self, step: int, shared: Any, own: Any, facts: Mapping[str, Any]) -> float:
        """Copy this rank's part of the state, have it written, return the seconds this took.

        `shared` is the same on every rank, `own` is this rank's. While the last checkpoint is
        being written this waits; one that the store refuses is given up for this one.
        """
        self._check_process()
        began = time.monotonic()
        part = _Part(shared, own, self._rank, self._world_size)  # raises before anything is done
        if not self._writer.claim(self._patience):
            why = f"the store took nothing of the last checkpoint for {self._patience:g} s"
            self._tell("checkpoint_failed", {"step": step, "why": why, "retrying": False})
            return time.monotonic() - began
        rest = part.rest(step)
        image = self._image_of(part, rest)
        image.fill(part.tensors, rest, alone=is_crowded())
        stall = time.monotonic() - began
        draft = Draft(step, self._generation, self._attempt)
        told = {**facts, "world_size": self._world_size, "stall": stall}
        self._writer.begin(Work(draft, self._rank, image.content, told))
        return time.monotonic() - began

    def move_on(self, generation: int) -> None:
        """Save for another generation from now on; what is being written is of the one before."""
        self._generation = generation

    def wait(self, limit: float) -> bool:
        """Wait for the last save; tell whether it is written and told of."""
        self._check_process()
        return self._writer.wait(limit)

    def close(self) -> None:
        """End the writer; what it cannot write is given up. In a fork this does nothing."""
        if os.getpid() == self._process:
            self._writer.close()

    def _image_of(self, part: "_Part", rest: bytes) -> Image:
        """Return the image of such state: the last one, or a new one in the same memory."""
        wanted = part.signature
        image = self._image
        if image is None or image.signature != wanted or not image.has_room(rest):
            self._image = image = None  # its views would keep the memory
            image = Image(wanted, 2 * len(rest), self._staging, part.is_on_gpu)
            self._image = image
        return image

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("only the process that made a Saver may use it, not a fork of it")


class _Part:
    """What one rank writes: its share of the tensors that all have, its own, two skeletons."""

    def __init__(self, shared: Any, own: Any, rank: int, world_size: int) -> None:
        everyones, mine = Flat(shared, "shared"), Flat(own, "own")
        owners = deal({name: item.nbytes for name, item in everyones.tensors.items()}, world_size)
        share = {name: item for name, item in everyones.tensors.items() if owners[name] == rank}
        groups = {"shared": share, "own": mine.tensors}
        self.tensors = [tensor for group in groups.values() for tensor in group.values()]
        self.signature = signature(groups)
        self.is_on_gpu = any(tensor.is_cuda for tensor in self.tensors)
        self._plain: dict[str, Any] = {"rank": rank, "world_size": world_size}
        self._plain["skeleton"] = {"own": mine.skeleton}
        if rank == 0:
            self._plain["skeleton"]["shared"] = everyones.skeleton

    def rest(self, step: int) -> bytes:
        """Return everything but the tensors, pickled."""
        return pickled({"step": step, **self._plain})
