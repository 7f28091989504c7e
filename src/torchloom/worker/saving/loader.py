"""Load a checkpoint: every shard is hashed first, and none of it can run code."""

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchloom.checkpoint.errors import BadManifest, CheckpointError, Damaged
from torchloom.checkpoint.layout import MANIFEST, shard_name
from torchloom.checkpoint.manifest import Manifest, Shard
from torchloom.checkpoint.storage import Storage
from torchloom.worker.run.parts import StoredTensors
from torchloom.worker.saving.shard_file import FORMAT, TensorSpec, records, storage_name, views
from torchloom.worker.saving.tree import whole

_GROUPS = ("shared", "own", "parts")  # of tensors, in their order; parts are of divided ones
Contents = Mapping[int, memoryview]  # of shards, by rank
Files = Mapping[int, Mapping[str, Any]]  # what shards hold, by rank


@dataclass(frozen=True)
class Loaded:
    """The state of a checkpoint for one rank; its tensors may be views of the shards.

    A local file is mapped copy-on-write: its disk space is in use until the last such tensor is
    freed.
    """

    step: int
    shared: Any
    own: Any
    manifest: Manifest
    exact_world: bool  # as many ranks as the checkpoint has, on the same mesh
    parts: StoredTensors | None = None  # of divided tensors
    owns: Callable[[], Iterator[Any]] = lambda: iter(())  # the `own` of all ranks, in order


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a checkpoint: a rank of so many, and their mesh if they divide the state."""

    rank: int
    size: int
    mesh: Mapping[str, int] | None = None


def hashed(
    storage: Storage, step: int, part: tuple[int, int], reader: Reader | None = None
) -> Contents:
    """Return the shards of part (i, n), each hashed; raise Damaged if one is not intact.

    Ranks that read the same files check one part each: `load` trusts the others for the rest.
    A `reader` alone with its files gets only those that it needs.
    """
    manifest = _manifest(storage, step)
    mine = [shard for shard in manifest.shards if shard.rank % part[1] == part[0]]
    if reader is not None and part[1] == 1:
        wanted = needed(manifest, reader.rank, is_same_mesh(manifest, reader.size, reader.mesh))
        mine = [shard for shard in mine if shard.rank in wanted]
    return {shard.rank: storage.read_shard(step, shard) for shard in mine}


def load(
    storage: Storage,
    step: int,
    reader: Reader,
    held: Contents | None = None,
    lent: tuple[str, ...] = ("",),
) -> Loaded:
    """Return the state before a step; raise Damaged if anything is wrong with it.

    On the mesh of a divided checkpoint only the files are read that the rank needs. A rank that the
    checkpoint does not have gets rank 0's `own`. Shards that are `held` were read
    already, and the others were hashed by other ranks. Tensors whose names begin with `lent` stay
    views of the shards, for callers that copy them at once; other tensors are copied.
    """
    manifest = _manifest(storage, step)
    is_exact = is_same_mesh(manifest, reader.size, reader.mesh)
    files = contents_of(storage, manifest, held, needed(manifest, reader.rank, is_exact))
    mine = reader.rank if reader.rank < manifest.world_size else 0
    found = Loaded(
        step=step,
        shared=shared_of(manifest, files, lent),
        own=own_of(manifest, files, mine, lent),
        manifest=manifest,
        exact_world=is_exact,
        parts=parts_of(manifest, files),
    )
    if is_exact:  # what is kept of the files keeps them mapped
        return found
    return replace(found, owns=lambda: (own_of(manifest, files, one) for one in sorted(files)))


def is_same_mesh(manifest: Manifest, world_size: int, mesh: Mapping[str, int] | None) -> bool:
    """Tell whether ranks are arranged as those that wrote a checkpoint."""
    there = None if manifest.sharding is None else dict(manifest.sharding.mesh)
    return manifest.world_size == world_size and there == (None if mesh is None else dict(mesh))


def needed(manifest: Manifest, rank: int, is_exact: bool) -> set[int]:
    """Return the ranks whose files a rank needs: rank 0's has what all ranks share."""
    if manifest.sharding is None or not is_exact:
        return {shard.rank for shard in manifest.shards}
    return {0, rank, *manifest.sharding.files_of(rank)}


def parts_of(manifest: Manifest, files: Files) -> StoredTensors | None:
    """Return the divided tensors of a checkpoint; raise Damaged if a file lacks a part."""
    sharding = manifest.sharding
    if sharding is None:
        return None
    for name, place in sharding.tensors.items():
        for rank, box in sharding.parts(place):
            if rank in files:
                part = files[rank].get("parts", {}).get(name)
                kind = None if part is None else str(part.dtype).removeprefix("torch.")
                if part is None or (tuple(part.shape), kind) != (box.sizes, place.dtype):
                    why = f"its part of {name} is missing, or is not the one in the manifest"
                    raise Damaged(manifest.step, shard_name(rank), why)
    return StoredTensors.of_shards(sharding, {rank: file["parts"] for rank, file in files.items()})


def contents_of(
    storage: Storage,
    manifest: Manifest,
    held: Contents | None = None,
    ranks: Set[int] | None = None,
) -> Files:
    """Return the contents of each rank's shard; each is hashed before it is parsed.

    With `ranks`, only theirs.
    """
    files = {}
    for shard in manifest.shards:
        if ranks is not None and shard.rank not in ranks:
            continue
        content = (held or {}).get(shard.rank)
        if content is None:
            content = storage.read_shard(manifest.step, shard, check=held is None)
        files[shard.rank] = _read(content, manifest, shard)
    return files


def shared_of(manifest: Manifest, files: Files, lent: tuple[str, ...] = ("",)) -> Any:
    """Return the state that is equal on all ranks, of which each has written a share."""
    tensors = {name: item for file in files.values() for name, item in file["shared"].items()}
    skeleton = files[0]["skeleton"]["shared"]
    return _whole(manifest, 0, skeleton, _kept(tensors, lent))


def own_of(manifest: Manifest, files: Files, rank: int, lent: tuple[str, ...] = ("",)) -> Any:
    """Return the state of one rank alone."""
    skeleton = files[rank]["skeleton"]["own"]
    return _whole(manifest, rank, skeleton, _kept(files[rank]["own"], lent))


def _kept(tensors: Mapping[str, torch.Tensor], lent: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return the tensors, copied if they are not lent."""
    return {
        name: tensor if name.startswith(lent) else tensor.clone()
        for name, tensor in tensors.items()
    }


def _manifest(storage: Storage, step: int) -> Manifest:
    try:
        return storage.manifest(step)
    except BadManifest as error:
        raise Damaged(step, MANIFEST, error.why) from None


def _read(content: memoryview, manifest: Manifest, shard: Shard) -> Mapping[str, Any]:
    """Return the contents of a shard whose hash was checked."""
    try:
        found = opened(content)
        _check(found, manifest, shard)
    except Exception as error:  # hostile bytes can make torch's reader raise anything
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(manifest.step, shard.name, f"cannot be read: {why}") from None
    return found


def opened(content: memoryview) -> dict[str, Any]:
    """Return the contents of a shard; the tensors are views of its bytes.

    torch reads the pickled part, with only tensors and plain containers allowed. The n-th tensor
    has the n-th storage: the file refers to them in this order, each once.
    """
    found = torch.load(_file(content), map_location="meta", weights_only=True, mmap=False)
    groups = [found[name] for name in _GROUPS if name in found]
    specs = [TensorSpec(item.dtype, item.shape) for group in groups for item in group.values()]
    stored = records(_file(content))
    places = [stored[storage_name(at)] for at in range(len(specs))]
    if any(place.size != spec.size for place, spec in zip(places, specs, strict=True)):
        raise ValueError("its tensors have other sizes than its storages")
    tensors = iter(views(content, specs, [place.offset for place in places]))
    for group in groups:
        for name in group:
            group[name] = next(tensors)
    return dict(found)


def _check(found: Mapping[str, Any], manifest: Manifest, shard: Shard) -> None:
    """Compare the facts in a shard with the manifest."""
    wanted = {
        "format": FORMAT,
        "step": manifest.step,
        "rank": shard.rank,
        "world_size": manifest.world_size,
    }
    for key, value in wanted.items():
        if found[key] != value:
            raise ValueError(f"it is of {key} {found[key]}, not {value}")
    trees = {"own", "shared"} if shard.rank == 0 else {"own"}
    if set(found["skeleton"]) != trees:
        raise ValueError(f"its skeleton is not of {' and '.join(sorted(trees))}")


def _whole(
    manifest: Manifest, rank: int, skeleton: Any, tensors: Mapping[str, torch.Tensor]
) -> Any:
    try:
        return whole(skeleton, tensors)
    except (KeyError, RecursionError) as error:
        why = f"a tensor is in no shard: {error}"
        raise Damaged(manifest.step, shard_name(rank), why) from None


def _file(content: memoryview) -> io.BufferedReader:
    return io.BufferedReader(_Window(content))


class _Window(io.RawIOBase):
    """Memory as a readable file, without a copy."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._at, len(self._content))[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._content[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


Part = tuple[int, int]  # the i-th of every n shards


class Prefetch:
    """A part of a checkpoint's shards, read and hashed in a thread."""

    def __init__(self, storage: Storage, step: int, part: Part) -> None:
        self._asked = (step, part)
        self._held: Contents | None = None
        self._thread = threading.Thread(
            target=self._read, args=(storage, step, part), name="loom-ahead", daemon=True
        )
        self._thread.start()

    def take(self, step: int, part: Part) -> Contents | None:
        """Return these shards, once; None if others were read, or reading failed.

        The caller then reads them itself and gets the error.
        """
        if (step, part) != self._asked:
            return None
        self._thread.join()
        held, self._held = self._held, None
        return held

    def _read(self, storage: Storage, step: int, part: Part) -> None:
        try:
            self._held = hashed(storage, step, part)
        except CheckpointError:
            self._held = None
