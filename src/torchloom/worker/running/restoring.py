"""Find the checkpoint to go on from: the one that was named, or the newest intact one before it."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.checkpoint import open_storage, step_of
from torchloom.checkpoint.errors import BadManifest, Damaged, Incomplete, NotCommitted
from torchloom.errors import UserError
from torchloom.worker.running import peers

VARIABLE = "LOOM_RESUME"
NONE = "1"  # a later life of a run that has saved nothing yet
_USELESS = (Damaged, BadManifest, NotCommitted, Incomplete)

Tell = Callable[[str, dict[str, Any]], None]


class BadPlace(UserError):
    """LOOM_RESUME names no checkpoint."""

    code = "bad_resume"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that all ranks could read."""

    root: str
    place: str
    loaded: Any  # what worker/saving returns


def named(env: Mapping[str, str]) -> str:
    """Return the place that a rank is to go on from; empty for one that begins."""
    place = env.get(VARIABLE, "")
    return "" if place == NONE else place.rstrip("/")


def find(place: str, rank: int, world_size: int, tell: Tell) -> Found | None:
    """Load the named checkpoint, or an older one; every rank comes here, and all take the same."""
    from torchloom.worker.saving import load

    root, _, name = place.rpartition("/")
    newest = step_of(name)
    if newest is None or not root:
        raise BadPlace(f"{VARIABLE}={place!r} is no checkpoint: give .../ckpt_step_N, or {NONE}")
    storage = open_storage(root, os.environ)
    asks = rank == 0 or not peers.together()  # one looks, for all
    steps = iter([step for step in storage.committed() if step <= newest] if asks else ())
    while (step := peers.gather(next(steps, -1))[0]) >= 0:
        loaded = None
        try:
            loaded = load(storage, step, rank, world_size)
        except _USELESS as error:
            tell("checkpoint_damaged", {"step": step, "name": _name(error), "why": str(error)})
            sys.stderr.write(f"loom: the checkpoint of step {step} is of no use: {error}\n")
        if all(peers.gather(int(loaded is not None))):
            return Found(root, storage.place_of(step), loaded)
    return None


def _name(error: Exception) -> str:
    return str(getattr(error, "name", "") or "")
