"""The contents of a checkpoint, of all ranks, by the names that the program uses."""

import math
import mmap
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchloom.checkpoint import LocalStorage, Manifest, open_storage
from torchloom.worker import environment
from torchloom.worker.run.digests import digest
from torchloom.worker.run.parts import StoredTensors
from torchloom.worker.saving.loader import contents_of, own_of, parts_of, shared_of

_OUTER = ("models", "buffers", "tracked")  # levels that the run API adds around the program's names
_LONGEST = 200  # characters of a displayed value


@dataclass(frozen=True)
class DividedTensor:
    """A tensor whose parts are in the files of several ranks, put together when it is read."""

    stored: StoredTensors
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return self.stored.shape(self.name)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its elements."""
        return self.stored.dtype(self.name)

    def read(self) -> Tensor:
        """Return the whole tensor, in memory of its own."""
        return self.stored.whole(self.name)


def read_tensor(leaf: Any) -> Any:
    """Return a value; a divided tensor is put together."""
    return leaf.read() if isinstance(leaf, DividedTensor) else leaf


@dataclass(frozen=True)
class Contents:
    """The state that all ranks share, the state of each rank alone, and divided tensors."""

    manifest: Manifest
    shared: Mapping[str, Any]
    own: tuple[Mapping[str, Any], ...]
    parts: StoredTensors | None = None

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yield every tensor and plain value by name, with the rank where it is one rank's."""
        for group in ("models.", "tracked."):
            yield from self._divided(group)
        yield from _leaves(self.shared)
        for rank, own in enumerate(self.own):
            yield from ((f"rank {rank}: {name}", leaf) for name, leaf in _leaves(own))

    def _divided(self, prefix: str) -> Iterator[tuple[str, DividedTensor]]:
        """Yield divided tensors whose names begin so, by the rest of their names."""
        if self.parts is not None:
            for name in self.parts.names(prefix):
                yield name, DividedTensor(self.parts, prefix + name)

    def models(self) -> dict[str, dict[str, Any]]:
        """Return the state dict of each model, with the buffers of the lowest rank that has them.

        Divided tensors are not read yet.
        """
        found: dict[str, dict[str, Any]] = {
            name: dict(parameters) for name, parameters in self.shared.get("models", {}).items()
        }
        for own in self.own:
            for name, buffers in own.get("buffers", {}).items():
                known = found.setdefault(name, {})
                known.update({key: each for key, each in buffers.items() if key not in known})
        for name, known in found.items():
            known.update(self._divided(f"models.{name}."))
        return found

    def tracked(self) -> dict[str, Any]:
        """Return the states of tracked objects, as rank 0 has them, with divided tensors."""
        states = {**self.shared.get("tracked", {}), **self.own[0].get("tracked", {})}
        more = dict(self._divided("tracked."))
        return {**states, **({"divided": more} if more else {})}

    def digests(self) -> list[dict[str, str]]:
        """Return the digest of each tensor, by rank, as `LOOM_DIGESTS` writes them."""
        alike = {name: digest(tensor) for name, tensor in self._noted()}
        return [
            alike
            | self._digests_of_parts(rank)
            | {name: digest(tensor) for name, tensor in _named(own.get("buffers", {}))}
            for rank, own in enumerate(self.own)
        ]

    def _digests_of_parts(self, rank: int) -> dict[str, str]:
        sharding = self.manifest.sharding
        if sharding is None or self.parts is None:
            return {}
        boxes = ((name, sharding.box(place, rank)) for name, place in sharding.tensors.items())
        return {
            name.partition(".")[2]: digest(self.parts.part(name, box))
            for name, box in boxes
            if box is not None
        }

    def _noted(self) -> Iterator[tuple[str, Tensor]]:
        yield from _named(self.shared.get("models", {}))
        for name, state in self.shared.get("tracked", {}).items():
            for at, values in (state.get("state") or {}).items():
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        yield f"{name}.{at}.{key}", value


def read(root: str, step: int) -> Contents:
    """Return the checkpoint of a step; every shard is hashed before it is read."""
    storage = open_storage(root, environment.variables())
    manifest = storage.manifest(step)
    held: dict[int, memoryview] | None = None
    if manifest.sharding is not None and not isinstance(storage, LocalStorage):
        held = {shard.rank: _on_disk(storage.read_shard(step, shard)) for shard in manifest.shards}
    files = contents_of(storage, manifest, held)
    own = tuple(own_of(manifest, files, rank) for rank in range(manifest.world_size))
    return Contents(manifest, shared_of(manifest, files), own, parts_of(manifest, files))


def _on_disk(content: memoryview) -> memoryview:
    """Return a shard of another host in a file that has no name, so that memory holds one shard."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), len(content), mmap.MAP_PRIVATE))


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


def compare(a: Contents, b: Contents) -> dict[str, Any]:
    """Return the tensors and values that differ, and tensors that only one side has."""
    left, right = dict(a.leaves()), dict(b.leaves())
    both = [name for name in left if name in right]
    tensors, values, same = [], [], 0
    for name in both:
        one, other = read_tensor(left[name]), read_tensor(right[name])
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if is_same(one, other):
                same += 1
            else:
                tensors.append(difference(name, one, other))
        elif not _is_equal(one, other):
            values.append({"name": name, "a": _shown(one), "b": _shown(other)})
    return {
        "same": same,
        "tensors": tensors,
        "only_a": _only(left, right),
        "only_b": _only(right, left),
        "values": values,
    }


def is_same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have equal type, shape and bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bits(one), _bits(other))


def difference(name: str, one: Tensor, other: Tensor) -> dict[str, Any]:
    """Return how much two tensors differ; NaN equals NaN."""
    row: dict[str, Any] = {"name": name, "shape": list(one.shape), "dtype": _type(one)}
    row |= {"why": "", "max_abs": None, "relative": None, "changed": None, "elements": one.numel()}
    if one.shape != other.shape:
        return {**row, "why": f"has the shape {list(other.shape)} in the second"}
    if one.dtype != other.dtype:
        return {**row, "why": f"is {_type(other)} in the second"}
    x, y = _numbers(one), _numbers(other)
    apart = torch.where(x.isnan() & y.isnan(), torch.zeros_like(x), x - y).abs()
    largest, scale = float(apart.max()), float(x.abs().nan_to_num(0.0).max())
    element = one.element_size()
    changed = (_bits(one) != _bits(other)).reshape(-1, element).any(1).sum()
    relative = largest / scale if scale else (0.0 if not largest else math.inf)
    row |= {"max_abs": _finite(largest), "relative": _finite(relative), "changed": int(changed)}
    return row


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _numbers(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1).to(torch.float64)


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _only(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    kinds = (Tensor, DividedTensor)
    return [name for name in here if name not in there and isinstance(here[name], kinds)]


def _is_equal(one: Any, other: Any) -> bool:
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):  # numpy's
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def _shown(value: Any) -> Any:
    """Return a value as JSON, or its repr."""
    if value is None or isinstance(value, bool | int | str):
        return value[:_LONGEST] if isinstance(value, str) else value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return repr(value)[:_LONGEST]
