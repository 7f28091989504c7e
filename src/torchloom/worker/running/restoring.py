"""Find the checkpoint to go on from: the one that was named, or the newest intact one before it."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torchloom.checkpoint import open_storage, step_of
from torchloom.checkpoint.errors import BadManifest, Damaged, Incomplete, NotCommitted
from torchloom.checkpoint.local import LocalStorage
from torchloom.checkpoint.storage import Storage
from torchloom.errors import UserError
from torchloom.worker.running import peers

VARIABLE = "LOOM_RESUME"
NONE = "1"  # a later life of a run that has saved nothing yet
_USELESS = (Damaged, BadManifest, NotCommitted, Incomplete)
# Copied into the model's tensors; all else is taken as it is, and must not hold on to a file.
_COPIED = ("shared.models.", "own.buffers.")

_ahead: dict[str, Any] = {}  # what is being read, by the root it is in

T = TypeVar("T")
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
    """Return the place that a rank is to go on from; empty for one that begins.

    What this rank hashes of it is read from now on, while the program makes its model.
    """
    place = env.get(VARIABLE, "")
    place = "" if place == NONE else place.rstrip("/")
    if place.startswith("/"):
        _begin(place, env)
    return place


def find(place: str, rank: int, world_size: int, tell: Tell) -> Found | None:
    """Load the named checkpoint, or an older one; every rank comes here, and all take the same."""
    root, newest = _parsed(place)
    if newest is None or not root:
        raise BadPlace(f"{VARIABLE}={place!r} is no checkpoint: give .../ckpt_step_N, or {NONE}")
    storage = open_storage(root, os.environ)
    asks = rank == 0 or not peers.together()  # one looks, for all
    steps = iter([step for step in storage.committed() if step <= newest] if asks else ())
    while (step := peers.gather(next(steps, -1))[0]) >= 0:
        loaded = _read(storage, step, rank, world_size, tell)
        if loaded is not None:
            return Found(root, storage.place_of(step), loaded)
    return None


def _parsed(place: str) -> tuple[str, int | None]:
    """Return the root that a place is in, and its step."""
    root, _, name = place.rpartition("/")
    return root, step_of(name)


def _begin(place: str, env: Mapping[str, str]) -> None:
    """Begin to read this rank's part of a checkpoint in a folder."""
    from torchloom.worker.saving.ahead import Ahead

    root, step = _parsed(place)
    if root and step is not None:
        _ahead[root] = Ahead(LocalStorage(root), step, _local_part(env))


def _read(storage: Storage, step: int, rank: int, world_size: int, tell: Tell) -> Any:
    """Return what all ranks could read; nothing when one of them has found damage."""
    from torchloom.worker.saving import hashed, load

    part = _part(storage)
    ahead = _ahead.pop(storage.root, None)
    held = ahead.take(step, part) if ahead is not None else None
    if held is None:
        held = _useful(partial(hashed, storage, step, part), step, tell)
    if not all(peers.gather(int(held is not None))):
        return None
    loaded = _useful(partial(load, storage, step, rank, world_size, held, _COPIED), step, tell)
    return loaded if all(peers.gather(int(loaded is not None))) else None


def _useful(read: Callable[[], T], step: int, tell: Tell) -> T | None:
    """Return what can be read of a checkpoint; nothing, and a word about it, when it is damaged."""
    try:
        return read()
    except _USELESS as error:
        tell("checkpoint_damaged", {"step": step, "name": _name(error), "why": str(error)})
        sys.stderr.write(f"loom: the checkpoint of step {step} is of no use: {error}\n")
        return None


def _part(storage: Storage) -> tuple[int, int]:
    """Return which part this rank hashes: those of one host read the same files of one cache."""
    if not peers.together() or not isinstance(storage, LocalStorage):
        return 0, 1
    return _local_part(os.environ)


def _local_part(env: Mapping[str, str]) -> tuple[int, int]:
    local, count = (env.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    is_known = local.isdecimal() and count.isdecimal() and int(local) < int(count)
    return (int(local), int(count)) if is_known else (0, 1)


def _name(error: Exception) -> str:
    return str(getattr(error, "name", "") or "")
