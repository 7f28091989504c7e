"""What a generation of a run goes on from: its newest checkpoint; nobody older saves any more."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from torchloom.launch.request import LaunchRequest
from torchloom.settings import environment

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage

NOTHING = "1"  # in the place of a checkpoint: this is no first start, and none is committed
Note = Callable[..., None]


class Saved:
    """The checkpoints of a run as its launch process sees them; one without any costs nothing."""

    def __init__(self, request: LaunchRequest, note: Note) -> None:
        self._request = request
        self._note = note
        self._store: Storage | None = None

    @property
    def may_exist(self) -> bool:
        """Tell whether the run saves, or has saved something."""
        root = self._request.checkpoints
        return bool(root) and (
            self._request.saves or root.startswith("s3://") or Path(root).is_dir()
        )

    def newest(self) -> int:
        """Return the step of the newest checkpoint; -1 when there is none, or none can be seen."""
        from torchloom.checkpoint import CheckpointError

        try:
            step = self._storage().latest() if self.may_exist else None
        except CheckpointError:
            return -1
        return -1 if step is None else step

    def prepare(self) -> None:
        """Have at hand what it takes to go on, while those end whose places are to be taken."""
        from torchloom.errors import LoomError

        if self.may_exist:
            with contextlib.suppress(LoomError):  # whoever goes on is told
                self._storage()

    def go_on(self, generation: int, reason: str, alone: bool = True) -> str:
        """Return what the ranks of a generation go on from, and have it known before they start.

        From now on no older generation commits; unless others of it live on, as replicas do that
        are restarted one by one. A store that does not answer is a CheckpointError.
        """
        if not self.may_exist:
            return NOTHING
        store = self._storage()
        if alone:
            store.fence(generation)
            self._clear(store, generation)
        step = self._wanted(store, generation)
        place = NOTHING if step is None else store.place_of(step)
        shown = "" if step is None else place
        self._note("resuming", step=step, place=shown, generation=generation, reason=reason)
        return place

    def _clear(self, store: "Storage", generation: int) -> None:
        """Delete what older generations have not committed.

        In one host's folder nobody waits for that. In a bucket it is a part of the fence, and
        where hosts look for each other's marks these must be gone before there are new ones.
        """
        if self._request.nodes or self._request.checkpoints.startswith("s3://"):
            store.clear_drafts(generation)
        else:
            Thread(target=_cleared, args=(store, generation), daemon=True).start()

    def _wanted(self, store: "Storage", generation: int) -> int | None:
        """Return the step to go on from; a chosen one makes those after it void, kept aside."""
        chosen = self._request.resume_from
        if chosen is None or generation != self._request.generation:
            return store.latest()
        store.manifest(chosen)
        for step in store.committed():
            if step > chosen:
                self._note("set_aside", step=step, place=store.set_aside(step))
        return chosen

    def _storage(self) -> "Storage":
        if self._store is None:
            from torchloom.checkpoint import open_storage

            self._store = open_storage(self._request.checkpoints, environment())
        return self._store


def _cleared(store: "Storage", generation: int) -> None:
    from torchloom.checkpoint import CheckpointError

    with contextlib.suppress(CheckpointError):  # the next restart tries it again
        store.clear_drafts(generation)
