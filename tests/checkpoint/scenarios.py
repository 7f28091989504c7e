"""What a run does with its checkpoints, told line by line, as a child does it that may die."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from torchloom.checkpoint import (
    CheckpointError,
    Draft,
    Fenced,
    Incomplete,
    Manifest,
    Shard,
    Storage,
    StoreUnavailable,
    shard_name,
)

from .witness import DIVIDED, WORLD, content, plain_manifest

LEAST_PART = 5 * 2**20  # bytes that S3 wants of all parts but the last
Tell = Callable[[str], None]


def manifest_of(step: int, generation: int = 0, attempt: int = 1) -> Manifest:
    """Return the manifest of what `content` gives, read from plain JSON."""
    return Manifest.from_json(json.dumps(plain_manifest(step, generation, attempt)))


def write(storage: Storage, step: int, generation: int = 0, attempt: int = 1) -> Draft:
    """Have every rank write its shard of a step."""
    draft = Draft(step, generation, attempt)
    for rank in range(WORLD):
        data = memoryview(content(step, rank, generation))
        storage.write_shard(draft, shard_name(rank), [data[:100], data[100:]])
    return draft


def commit(storage: Storage, step: int, generation: int = 0) -> str:
    """Write and commit a step."""
    draft = write(storage, step, generation)
    return storage.commit(draft, manifest_of(step, generation))


def committing(storage: Storage, tell: Tell) -> None:
    """Save a step and commit it. 100 is there before."""
    _save(storage, tell, 200, 0)


def dividing(storage: Storage, tell: Tell) -> None:
    """Save a step of ranks that divide the state, and commit it. 100 is there before."""
    plain = {**plain_manifest(200), "strategy": "fsdp", "sharding": DIVIDED}
    manifest = Manifest.from_json(json.dumps(plain))
    _again(tell, lambda: write(storage, 200))
    _again(tell, lambda: storage.commit(manifest.draft, manifest))
    tell("committed 200 0")
    _again(tell, storage.committed)


def uploading(storage: Storage, tell: Tell) -> None:
    """Save a shard that goes in two parts, and commit it. 100 is there before."""
    data = memoryview(blake3(b"large").digest(length=LEAST_PART + 1))
    _again(tell, lambda: storage.write_shard(Draft(200, 0, 1), shard_name(0), [data]))
    shard = Shard(shard_name(0), len(data), f"blake3:{blake3(data).hexdigest()}", 0)
    manifest = dataclasses.replace(manifest_of(200), world_size=1, shards=(shard,))
    _again(tell, lambda: storage.commit(manifest.draft, manifest))
    tell("committed 200 0")


def repeating(storage: Storage, tell: Tell) -> None:
    """Say again a commit that was carried out, 300, and read it back."""
    _again(tell, lambda: storage.commit(Draft(300, 0, 1), manifest_of(300)))
    tell("committed 300 0")
    _look(storage, tell)


def replacing(storage: Storage, tell: Tell) -> None:
    """Commit 200 again, as generation 1, where it is damaged."""
    _save(storage, tell, 200, 1)


def fencing(storage: Storage, tell: Tell) -> None:
    """Begin generation 1, and clear up; then the old one, which has all shards, tries to commit."""
    _again(tell, lambda: storage.fence(1))
    tell("fence 1")
    with contextlib.suppress(Fenced, Incomplete):
        _again(tell, lambda: storage.commit(Draft(300, 0, 1), manifest_of(300)))
        tell("committed 300 0")
    _again(tell, lambda: storage.clear_drafts(1))
    _again(tell, lambda: storage.fence(1))


def removing(storage: Storage, tell: Tell) -> None:
    """Remove what retention gives up, and a draft that is looked at before. 300 stays."""
    draft = Draft(400, 0, 1)
    _again(tell, lambda: storage.remove(100))
    tell("removed 100")
    _again(tell, lambda: storage.written(draft))
    _again(tell, lambda: storage.discard(draft))


def setting_aside(storage: Storage, tell: Tell) -> None:
    """Set a damaged one, 350, aside; leave a mark and clear it. 300 stays."""
    _again(tell, lambda: _set_aside(storage, 350))
    _again(tell, lambda: storage.mark("nonce"))
    _again(tell, lambda: storage.sees("nonce"))
    _again(tell, lambda: storage.clear_drafts(0))


@dataclasses.dataclass(frozen=True)
class Scenario:
    """An act, and what is there before: whole steps, drafts, and steps with a damaged shard."""

    act: Callable[[Storage, Tell], None]
    whole: tuple[int, ...]
    drafts: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()
    only_s3: bool = False


SCENARIOS = {
    "committing": Scenario(committing, whole=(100,)),
    "dividing": Scenario(dividing, whole=(100,)),
    "uploading": Scenario(uploading, whole=(100,), only_s3=True),
    "repeating": Scenario(repeating, whole=(100, 300)),
    "replacing": Scenario(replacing, whole=(100,), damaged=(200,)),
    "fencing": Scenario(fencing, whole=(100,), drafts=(300,)),
    "removing": Scenario(removing, whole=(100, 300), drafts=(400,)),
    "setting_aside": Scenario(setting_aside, whole=(100, 300), damaged=(350,)),
}


def _save(storage: Storage, tell: Tell, step: int, generation: int) -> None:
    _again(tell, lambda: write(storage, step, generation))
    manifest = manifest_of(step, generation)
    _again(tell, lambda: storage.commit(manifest.draft, manifest))
    tell(f"committed {step} {generation}")
    _again(tell, storage.committed)  # calls at which it has been reported


def _set_aside(storage: Storage, step: int) -> None:
    if step in storage.committed():  # a first try may have done it
        storage.set_aside(step)


def _look(storage: Storage, tell: Tell) -> None:
    """Read what was committed; a disk that fails meanwhile may make it look damaged."""
    for look in (
        storage.latest,
        lambda: storage.verify(300),
        lambda: storage.read_shard(300, storage.manifest(300).shards[0]),
        storage.committed,
    ):
        try:
            look()
        except CheckpointError as error:
            tell(f"look {type(error).__name__}")


def _again(tell: Tell, act: Callable[[], Any]) -> None:
    """Act, and once more where the store was unavailable: callers do so."""
    try:
        act()
    except StoreUnavailable as error:
        tell(f"unavailable {error.why}")
        act()
