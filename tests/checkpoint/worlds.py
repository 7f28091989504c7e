"""A store for a test, and a hand that reaches past it: what lies there, put, changed, dropped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore

from torchloom.checkpoint import Storage, folder_name, open_storage

from ..harness.s3_server import S3Server, bucket
from .witness import whole_steps, whole_steps_in


class LocalWorld:
    """Checkpoints in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage: Storage = open_storage(str(root), {})

    def shard(self, step: int, rank: int, generation: int = 0) -> str:
        """Return the key of a committed shard."""
        return f"{folder_name(step)}/worker_{rank}.pt"

    def draft(self, step: int, rank: int, generation: int = 0) -> str:
        """Return the key of a shard of a draft."""
        return f"{folder_name(step)}.g{generation}-1/worker_{rank}.pt"

    def get(self, key: str) -> bytes:
        """Return what lies there."""
        return (self.root / key).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        """Put something there."""
        (self.root / key).parent.mkdir(parents=True, exist_ok=True)
        (self.root / key).write_bytes(data)

    def drop(self, key: str) -> None:
        """Delete it."""
        (self.root / key).unlink()

    def whole(self) -> dict[int, int]:
        """Return the steps that are complete and hash-correct, with their generations."""
        return whole_steps(self.root)

    def names(self) -> set[str]:
        """Return the folders at the top."""
        return {path.name for path in self.root.iterdir() if path.is_dir()}


class S3World:
    """Checkpoints below a prefix of a bucket."""

    def __init__(self, server: S3Server, prefix: str) -> None:
        self.storage: Storage = open_storage(server.url(prefix), server.env)
        self._prefix = prefix
        self._store = bucket(server.endpoint)

    def shard(self, step: int, rank: int, generation: int = 0) -> str:
        """Return the key of a committed shard."""
        return f"{folder_name(step)}/g{generation}-1/worker_{rank}.pt"

    draft = shard

    def get(self, key: str) -> bytes:
        """Return what lies there."""
        return bytes(obstore.get(self._store, f"{self._prefix}/{key}").bytes())

    def put(self, key: str, data: bytes) -> None:
        """Put something there."""
        obstore.put(self._store, f"{self._prefix}/{key}", data)

    def drop(self, key: str) -> None:
        """Delete it."""
        obstore.delete(self._store, f"{self._prefix}/{key}")

    def whole(self) -> dict[int, int]:
        """Return the steps that are complete and hash-correct, with their generations."""
        return whole_steps_in({key: self.get(key) for key in self._keys()})

    def names(self) -> set[str]:
        """Return the folders at the top."""
        return {key.split("/")[0] for key in self._keys() if "/" in key}

    def _keys(self) -> list[str]:
        pages: Any = obstore.list(self._store, f"{self._prefix}/")
        paths = [found["path"] for page in pages for found in page]
        return [path.removeprefix(f"{self._prefix}/") for path in paths]


World = LocalWorld | S3World
Damage = Callable[[World, int], None]


def lose_a_shard(world: World, step: int) -> None:
    """Delete a shard."""
    world.drop(world.shard(step, 1))


def cut_a_shard(world: World, step: int) -> None:
    """Leave half of a shard."""
    key = world.shard(step, 0)
    world.put(key, world.get(key)[:100])


def garble_the_manifest(world: World, step: int) -> None:
    """Leave half of a manifest."""
    key = f"{folder_name(step)}/manifest.json"
    world.put(key, world.get(key)[:100])


def flip_a_bit(world: World, step: int) -> None:
    """Change a bit of a shard, not its size."""
    key = world.shard(step, 1)
    data = bytearray(world.get(key))
    data[17] ^= 4
    world.put(key, bytes(data))
