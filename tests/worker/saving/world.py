"""Checkpoints of several ranks in one process: real savers, a real folder, a real commit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchloom.checkpoint import Draft, LocalStorage, Manifest, Shard
from torchloom.checkpoint.storage import Storage
from torchloom.worker.saving import Saver


def manifest_of(step: int, shards: Sequence[Shard]) -> Manifest:
    """Return a manifest as the plane would make it."""
    return Manifest(
        job_id="job",
        run_id="run",
        step=step,
        epoch=0,
        world_size=len(shards),
        strategy="ddp",
        backend="gloo",
        shards=tuple(shards),
        optimizer_state=True,
        rng_state=True,
        generation=0,
        attempt=0,
        created_at="2026-01-01T00:00:00+00:00",
    )


def saver_of(storage: Storage, told: list[tuple[str, dict[str, Any]]], **other: Any) -> Saver:
    """Return a saver that notes what it tells; alone in its world unless said otherwise."""
    facts = {"rank": 0, "world_size": 1, "generation": 0, "attempt": 0, **other}
    return Saver(storage, report=lambda kind, said: told.append((kind, said)), **facts)


def shards_of(told: Sequence[tuple[str, dict[str, Any]]]) -> list[Shard]:
    """Return the shards that savers told of."""
    facts = [said for kind, said in told if kind == "checkpoint_shard"]
    return [Shard(said["name"], said["size"], said["hash"], said["rank"]) for said in facts]


def commit(storage: Storage, step: int, shared: Any, owns: Sequence[Any]) -> Manifest:
    """Save with as many ranks as there are owns, and commit it."""
    told: list[tuple[str, dict[str, Any]]] = []
    for rank, own in enumerate(owns):
        saver = saver_of(storage, told, rank=rank, world_size=len(owns))
        saver.save(step, shared, own, {})
        assert saver.wait(30), told
        saver.close()
    manifest = manifest_of(step, shards_of(told))
    storage.commit(Draft(step, 0, 0), manifest)
    return manifest


def local(folder: Path) -> LocalStorage:
    """Return a store in a folder."""
    return LocalStorage(str(folder / "checkpoints"))
