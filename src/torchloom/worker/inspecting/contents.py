"""All that a checkpoint holds, of all ranks, by names that people know from their programs."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchloom.checkpoint import Manifest, open_storage
from torchloom.worker.running.digests import digest
from torchloom.worker.saving.loading import contents_of, own_of, shared_of

_OUTER = ("models", "buffers", "tracked")  # what the run API puts around the program's names


@dataclass(frozen=True)
class Contents:
    """What all ranks share, and what is each one's own."""

    manifest: Manifest
    shared: Mapping[str, Any]
    own: tuple[Mapping[str, Any], ...]

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yield every tensor and every plain value by name; what is one rank's says whose."""
        yield from _leaves(self.shared)
        for rank, own in enumerate(self.own):
            yield from ((f"rank {rank}: {name}", leaf) for name, leaf in _leaves(own))

    def models(self) -> dict[str, dict[str, Tensor]]:
        """Return the state of each model: its parameters, and its buffers as rank 0 has them."""
        buffers = self.own[0].get("buffers", {})
        return {
            name: {**parameters, **buffers.get(name, {})}
            for name, parameters in self.shared.get("models", {}).items()
        }

    def tracked(self) -> dict[str, Any]:
        """Return the state of what was tracked, as rank 0 has it."""
        return {**self.shared.get("tracked", {}), **self.own[0].get("tracked", {})}

    def digests(self) -> list[dict[str, str]]:
        """Return what the bits of each tensor give, rank by rank, as a rank itself notes them."""
        alike = {name: digest(tensor) for name, tensor in self._noted()}
        return [
            alike | {name: digest(tensor) for name, tensor in _named(own.get("buffers", {}))}
            for own in self.own
        ]

    def _noted(self) -> Iterator[tuple[str, Tensor]]:
        yield from _named(self.shared.get("models", {}))
        for name, state in self.shared.get("tracked", {}).items():
            for at, values in (state.get("state") or {}).items():
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        yield f"{name}.{at}.{key}", value


def read(root: str, step: int) -> Contents:
    """Return the checkpoint of a step; its shards are hashed before anything of them is read."""
    storage = open_storage(root, os.environ)
    manifest = storage.manifest(step)
    files = contents_of(storage, manifest)
    own = tuple(own_of(manifest, files, rank) for rank in range(manifest.world_size))
    return Contents(manifest, shared_of(manifest, files), own)


def _named(models: Mapping[str, Mapping[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for model, tensors in models.items():
        yield from ((f"{model}.{name}", tensor) for name, tensor in tensors.items())


def _leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        items = [(str(key), value) for key, value in state.items()]
    elif isinstance(state, list | tuple):
        items = [(str(at), value) for at, value in enumerate(state)]
    else:
        yield path, state
        return
    for key, value in items:
        is_outer = not path and key in _OUTER
        yield from _leaves(value, "" if is_outer else f"{path}.{key}" if path else key)
