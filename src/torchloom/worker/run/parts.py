"""This rank's parts of divided tensors (DTensor): taken for a checkpoint, filled from one."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchloom.checkpoint.placement import Box, ShardMap, TensorPlace
from torchloom.errors import UserError, shorten

Pieces = Sequence[tuple[Box, Tensor]]  # of one tensor: what is there of it, and where that belongs


class NotOnMesh(UserError):
    """A divided tensor has no place on the mesh of the run; the message names it."""

    code = "not_on_mesh"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot save {shorten(name, 200)}: {why}")


@dataclass(frozen=True, slots=True)
class RankMesh:
    """The mesh of all ranks, this rank's number, and the coordinates that limit what it holds.

    The stages of a pipeline hold different tensors: `at` names the stage.
    """

    sizes: Mapping[str, int]
    rank: int
    at: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Parts:
    """What this rank writes of divided tensors, and the places of all that it has a part of."""

    tensors: Mapping[str, Tensor]
    sharding: ShardMap
    rank: int

    def facts(self) -> dict[str, str]:
        """Return what this rank reports of the places; empty if another rank does."""
        return {"places": self.sharding.packed()} if self.sharding.reports(self.rank) else {}


def is_divided(thing: Any) -> bool:
    """Tell whether a value is a DTensor, without importing what defines it."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def local_of(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor; a view, which may be written to."""
    if not is_divided(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def taken(mesh: RankMesh, named: Mapping[str, Tensor]) -> Parts:
    """Return this rank's parts of tensors; raise NotOnMesh for one that has no place."""
    places = {name: place_of(name, tensor, mesh) for name, tensor in named.items()}
    sharding = ShardMap(mesh.sizes, places).dealt()
    tensors = {
        name: local_of(named[name]).detach()
        for name, place in sharding.tensors.items()
        if sharding.writes(place, mesh.rank)
    }
    return Parts(tensors, sharding, mesh.rank)


def place_of(name: str, tensor: Tensor, mesh: RankMesh) -> TensorPlace:
    """Return how a tensor is divided over the mesh; a plain one is whole on each rank."""
    cuts = _cuts(name, tensor, mesh) if is_divided(tensor) else ()
    kind = str(tensor.dtype).removeprefix("torch.")
    place = TensorPlace(kind, tuple(tensor.shape), cuts, tuple(mesh.at.items()))
    box = ShardMap(mesh.sizes).box(place, mesh.rank)
    if box is None or box.sizes != tuple(local_of(tensor).shape):
        raise NotOnMesh(name, "its ranks hold parts that are not those of its mesh")
    return place


def _cuts(name: str, tensor: Any, mesh: RankMesh) -> tuple[tuple[str, int], ...]:
    """Return the divisions in their order: FSDP cuts what tensor parallelism has cut before."""
    dimensions = names_of(tensor.device_mesh)
    plain: list[tuple[str, int]] = []
    strided: list[tuple[str, int]] = []
    for dimension, placement in zip(dimensions, tensor.placements, strict=True):
        if placement.is_partial():
            raise NotOnMesh(name, "each rank has only a summand of it")
        if placement.is_replicate():
            continue
        if dimension not in mesh.sizes:
            raise NotOnMesh(name, f"the mesh of the run has no dimension {dimension}")
        where = strided if type(placement).__name__ == "_StridedShard" else plain
        where.append((dimension, int(placement.dim) % tensor.dim()))
    return (*plain, *strided[::-1])


def names_of(mesh: Any) -> tuple[str, ...]:
    """Return the names of a mesh's dimensions; those without one are counted."""
    return tuple(mesh.mesh_dim_names or (f"dim{at}" for at in range(mesh.ndim)))


def mesh_of_all(tensor: Any, rank: int, world_size: int) -> RankMesh:
    """Return the mesh over all ranks that a DTensor belongs to; raise NotOnMesh without one."""
    root = tensor.device_mesh._get_root_mesh()
    if root.mesh.flatten().tolist() != list(range(world_size)):
        raise NotOnMesh("a DTensor", f"its mesh is not of the ranks 0 to {world_size - 1} in order")
    return RankMesh(dict(zip(names_of(root), root.mesh.shape, strict=True)), rank, {})


def fill(target: Tensor, box: Box, pieces: Pieces) -> None:
    """Copy into the part of a tensor what pieces have of it."""
    with torch.no_grad():
        for its, piece in pieces:
            both = box.overlap(its)
            if both is not None:
                target[both.within(box)].copy_(piece[both.within(its)])


class StoredTensors:
    """The tensors of a checkpoint by name, of which a rank takes what it needs."""

    def __init__(
        self, found: Mapping[str, Callable[[], Pieces]], shapes: Mapping[str, Any]
    ) -> None:
        self._found = found
        self._shapes = shapes

    @classmethod
    def of_whole(cls, named: Mapping[str, Tensor]) -> "StoredTensors":
        """Return tensors that are not divided."""

        def piece(tensor: Tensor) -> Callable[[], Pieces]:
            return lambda: [(Box.whole(tensor.shape), tensor)]

        shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in named.items()}
        return cls({name: piece(tensor) for name, tensor in named.items()}, shapes)

    @classmethod
    def of_shards(
        cls, sharding: ShardMap, files: Mapping[int, Mapping[str, Tensor]]
    ) -> "StoredTensors":
        """Return tensors whose parts are in the files of ranks; a file that is not there is not."""

        def pieces(name: str, place: TensorPlace) -> Callable[[], Pieces]:
            return lambda: [
                (box, files[rank][name]) for rank, box in sharding.parts(place) if rank in files
            ]

        shapes = {
            name: (place.shape, getattr(torch, place.dtype))
            for name, place in sharding.tensors.items()
        }
        found = {name: pieces(name, place) for name, place in sharding.tensors.items()}
        return cls(found, shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def names(self, prefix: str) -> list[str]:
        """Return the names with this prefix, without it."""
        return [name[len(prefix) :] for name in self._found if name.startswith(prefix)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        shape: tuple[int, ...] = self._shapes[name][0]
        return shape

    def fill(self, name: str, target: Tensor, box: Box) -> None:
        """Copy into a part of a tensor."""
        fill(target, box, self._found[name]())

    def part(self, name: str, box: Box) -> Tensor:
        """Return a part of a tensor, copied."""
        made = torch.empty(box.sizes, dtype=self._shapes[name][1])
        self.fill(name, made, box)
        return made

    def whole(self, name: str) -> Tensor:
        """Return a whole tensor, copied."""
        return self.part(name, Box.whole(self.shape(name)))


def box_of(tensor: Tensor, mesh: RankMesh | None) -> Box:
    """Return the box of a rank's part of a tensor."""
    if mesh is None or not is_divided(tensor):
        return Box.whole(tensor.shape)
    box = ShardMap(mesh.sizes).box(place_of("", tensor, mesh), mesh.rank)
    assert box is not None
    return box


def divided_like(tensor: Any, part: Tensor) -> Tensor:
    """Return a DTensor of this part, divided as another one of its shape."""
    from torch.distributed.tensor import DTensor

    found: Tensor = DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return found
