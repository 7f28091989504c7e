"""Checkpoints made of a few bytes, in the layout of the real store: no torch is needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import Draft, Manifest, Shard, Storage, open_storage, shard_name
from torchloom.cli.main import main

Captured = pytest.CaptureFixture[str]
WHEN = "2026-01-31T12:00:00.000+00:00"


def draft(root: Path, step: int, generation: int = 0, attempt: int = 0) -> Draft:
    """Leave a draft with one shard, as a rank that is still at it has it."""
    begun = Draft(step, generation, attempt)
    open_storage(str(root), {}).write_shard(begun, shard_name(0), [memoryview(b"begun")])
    return begun


def commit(
    root: Path | str,
    step: int,
    *contents: bytes,
    env: Mapping[str, str] | None = None,
    **facts: Any,
) -> Storage:
    """Commit a checkpoint with one shard for each content; return the store."""
    storage = open_storage(str(root), env or {})
    begun = Draft(step, facts.get("generation", 0), facts.get("attempt", 0))
    shards = []
    for rank, content in enumerate(contents or (b"one", b"two")):
        written = storage.write_shard(begun, shard_name(rank), [memoryview(content)])
        shards.append(Shard(shard_name(rank), written.size, written.hash, rank))
    whole = {
        "job_id": "train-1",
        "run_id": "train-1",
        "step": step,
        "epoch": 0,
        "world_size": len(shards),
        "strategy": "ddp",
        "backend": "gloo",
        "shards": tuple(shards),
        "optimizer_state": True,
        "rng_state": True,
        "generation": begun.generation,
        "attempt": begun.attempt,
        "created_at": WHEN,
        "trigger": "every_n_steps",
        **facts,
    }
    storage.commit(begun, Manifest(**whole))
    return storage


def row(root: Path, step: int, state: str = "committed", **more: Any) -> dict[str, Any]:
    """Return what `ls --json` says of such a checkpoint of job train-1."""
    return {
        "job": "train-1",
        "step": step,
        "state": state,
        "reason": "",
        "created_at": WHEN,
        "bytes": 6,
        "world_size": 2,
        "trigger": "every_n_steps",
        "metrics": {},
        "generation": 0,
        "attempt": 0,
        "place": str(root / f"ckpt_step_{step:05d}"),
        "trainer": "",
        "path": "",
        **more,
    }


def said(capsys: Captured, *words: str) -> tuple[int, str, str]:
    """Return how `loom checkpoint` ended, and what it said on either stream."""
    capsys.readouterr()
    code = main(["checkpoint", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
