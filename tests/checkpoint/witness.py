"""A second reader and writer of checkpoints, of plain json, os and blake3: no witness of itself."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

WORLD = 2
SIZES = (40_961, 4_096)  # bytes of a shard: one with a tail, one without


DIVIDED = {  # where the parts of tensors are that two ranks share; more than a page of it
    "mesh": {"dp_shard": WORLD, "tp": 1},
    "tensors": {
        f"models.model.layers.{at}.weight": ["float32", [8, at + 1], [["dp_shard", 0]], [], 0]
        for at in range(200)
    },
}


def content(step: int, rank: int, generation: int = 0) -> bytes:
    """Return what a rank saves at a step, the same each time."""
    seed = f"{step} {rank} {generation}".encode()
    return blake3(seed).digest(length=SIZES[rank % len(SIZES)])


def plain_manifest(step: int, generation: int = 0, attempt: int = 1) -> dict[str, Any]:
    """Return a manifest as anyone could write it by hand."""
    shards = []
    for rank in range(WORLD):
        data = content(step, rank, generation)
        digest = f"blake3:{blake3(data).hexdigest()}"
        shards.append(
            {"name": f"worker_{rank}.pt", "size": len(data), "hash": digest, "rank": rank}
        )
    return {
        "format": 1,
        "job_id": "job-1",
        "run_id": "run-1",
        "step": step,
        "epoch": 0,
        "world_size": WORLD,
        "strategy": "ddp",
        "backend": "gloo",
        "shards": shards,
        "optimizer_state": True,
        "rng_state": True,
        "generation": generation,
        "attempt": attempt,
        "knobs": 3,
        "versions": {"torchloom": "0.1.0"},
        "metrics": {"loss": 0.5},
        "trigger": "every_n_steps",
        "created_at": "2026-01-01T00:00:00+00:00",
    }


def put_plain(root: Path, step: int, generation: int = 0) -> Path:
    """Write a committed checkpoint into a folder by hand."""
    folder = root / f"ckpt_step_{step:05d}"
    folder.mkdir(parents=True)
    for rank in range(WORLD):
        (folder / f"worker_{rank}.pt").write_bytes(content(step, rank, generation))
    (folder / "manifest.json").write_text(json.dumps(plain_manifest(step, generation)))
    return folder


def whole_steps(root: Path) -> dict[int, int]:
    """Return the steps in a folder that are complete and hash-correct, with their generations."""
    return good_steps(
        {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and not path.is_symlink()
        },
        lambda folder, manifest, name: f"{folder}/{name}",
    )


def whole_steps_in(objects: Mapping[str, bytes]) -> dict[int, int]:
    """Return the same of the objects below a prefix of a bucket."""
    return good_steps(
        objects,
        lambda folder, manifest, name: (
            f"{folder}/g{manifest['generation']}-{manifest['attempt']}/{name}"
        ),
    )


def good_steps(files: Mapping[str, bytes], place: Any) -> dict[int, int]:
    """Return the complete, hash-correct steps among files, by where a shard's place is."""
    found = {}
    for path, data in files.items():
        named = re.fullmatch(r"(ckpt_step_([0-9]{5,}))/manifest\.json", path)
        if named and _is_good(named[1], data, files, place):
            found[int(named[2])] = int(json.loads(data)["generation"])
    return found


def _is_good(folder: str, text: bytes, files: Mapping[str, bytes], place: Any) -> bool:
    try:
        manifest = json.loads(text)
    except ValueError:
        return False
    if manifest["strategy"] == "fsdp" and manifest["sharding"] != DIVIDED:
        return False
    for shard in manifest["shards"]:
        data = files.get(place(folder, manifest, shard["name"]))
        if data is None or len(data) != shard["size"]:
            return False
        if f"blake3:{blake3(data).hexdigest()}" != shard["hash"]:
            return False
    return len(manifest["shards"]) == manifest["world_size"]


def spoil(path: Path) -> None:
    """Change one bit of a file, not its size."""
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
        os.fsync(file.fileno())
