"""Where the parts of divided tensors are: the mesh of the ranks, and how each tensor is cut.

A rank's place in the mesh is counted with the last dimension fastest. Nothing that comes from a
file or a rank is trusted before `from_dict` has accepted it.
"""

import base64
import heapq
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from torchloom.checkpoint.errors import BadManifest

MOST_TENSORS = 1 << 17
LARGEST_PACKED = 1 << 19  # characters that a rank's message has room for
_LARGEST_TEXT = 16 * 2**20
_LONGEST = 500  # characters of a tensor's name
_LARGEST = 2**53
_MOST_DIMENSIONS = 16
_NAME = re.compile("[a-z0-9_]{1,32}")
_DTYPE = re.compile("[a-z][a-z0-9_]{1,31}")


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: where it begins, and its size, in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Iterable[int]) -> "Box":
        """Return the box of a whole tensor."""
        sizes = tuple(shape)
        return cls((0,) * len(sizes), sizes)

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.sizes)

    def overlap(self, other: "Box") -> "Box | None":
        """Return what two boxes have in common; None for nothing."""
        starts = tuple(map(max, self.offsets, other.offsets))
        ends = (
            min(a + m, b + n)
            for a, m, b, n in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        )
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts, sizes) if all(size > 0 for size in sizes) else None

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """Return the slices that select this box in a tensor that holds `outer`."""
        starts = (mine - its for mine, its in zip(self.offsets, outer.offsets, strict=True))
        return tuple(
            slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True)
        )


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """How a tensor is divided: `cuts` are (mesh dimension, tensor dimension), in their order.

    Only ranks with the coordinates `at` have it. Of ranks that have the same part, the one with
    this number among them writes it.
    """

    dtype: str
    shape: tuple[int, ...]
    cuts: tuple[tuple[str, int], ...] = ()
    at: tuple[tuple[str, int], ...] = ()
    writer: int = 0

    @property
    def box(self) -> Box:
        """Return the box of the whole tensor."""
        return Box.whole(self.shape)


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The mesh of the ranks, in order, and the place of each divided tensor by name."""

    mesh: Mapping[str, int]
    tensors: Mapping[str, TensorPlace] = field(default_factory=dict)

    @property
    def ranks(self) -> range:
        """Return all ranks of the mesh."""
        return range(math.prod(self.mesh.values()))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank in each dimension."""
        found: dict[str, int] = {}
        for name in reversed(list(self.mesh)):
            rank, found[name] = divmod(rank, self.mesh[name])
        return found

    def box(self, place: TensorPlace, rank: int) -> Box | None:
        """Return the part of a tensor that a rank has; None where it has nothing of it.

        A dimension is cut into equal parts, rounded up; the last ones may be smaller or empty.
        """
        where = self.coordinates(rank)
        if any(where[name] != index for name, index in place.at):
            return None
        offsets, sizes = [0] * len(place.shape), list(place.shape)
        for name, dimension in place.cuts:
            each = -(-sizes[dimension] // self.mesh[name])
            start = min(where[name] * each, sizes[dimension])
            offsets[dimension] += start
            sizes[dimension] = min(each, sizes[dimension] - start)
        return Box(tuple(offsets), tuple(sizes))

    def writer(self, place: TensorPlace, rank: int) -> int:
        """Return which rank has written the part that this rank has."""
        where, number = self.coordinates(rank), place.writer
        for name in reversed(self._replicas(place)):
            number, where[name] = divmod(number, self.mesh[name])
        found = 0
        for name, size in self.mesh.items():
            found = found * size + where[name]
        return found

    def writes(self, place: TensorPlace, rank: int) -> bool:
        """Tell whether a rank writes its part of a tensor: it is not empty, and no other does."""
        box = self.box(place, rank)
        return box is not None and box.count > 0 and self.writer(place, rank) == rank

    def reports(self, rank: int) -> bool:
        """Tell whether a rank reports these places: the first of those that have them."""
        fixed = {name for place in self.tensors.values() for name, _ in place.at}
        return not any(at for name, at in self.coordinates(rank).items() if name not in fixed)

    def parts(self, place: TensorPlace) -> Iterator[tuple[int, Box]]:
        """Yield the parts of a tensor that were written, each once, with the rank that did."""
        for rank in self.ranks:
            box = self.box(place, rank)
            if box is not None and box.count and self.writer(place, rank) == rank:
                yield rank, box

    def files_of(self, rank: int) -> set[int]:
        """Return the ranks whose files have the parts of this rank."""
        boxes = ((place, self.box(place, rank)) for place in self.tensors.values())
        return {self.writer(place, rank) for place, box in boxes if box is not None and box.count}

    def dealt(self) -> "ShardMap":
        """Return this with a writer for each tensor, so that ranks with the same parts share."""

        def alike(item: tuple[str, TensorPlace]) -> Any:
            return sorted(item[1].cuts), item[1].at

        found: dict[str, TensorPlace] = {}
        for _, group in groupby(sorted(self.tensors.items(), key=alike), key=alike):
            members = dict(group)
            count = math.prod(
                self.mesh[name] for name in self._replicas(next(iter(members.values())))
            )
            sizes = {name: math.prod(place.shape) for name, place in members.items()}
            owners = deal(sizes, count)
            found |= {name: replace(members[name], writer=owners[name]) for name in members}
        return replace(self, tensors={name: found[name] for name in self.tensors})

    def _replicas(self, place: TensorPlace) -> list[str]:
        """Return the dimensions along which ranks have the same part."""
        other = {name for name, _ in (*place.cuts, *place.at)}
        return [name for name in self.mesh if name not in other]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        rows = {
            name: [each.dtype, each.shape, each.cuts, each.at, each.writer]
            for name, each in self.tensors.items()
        }
        return {"mesh": dict(self.mesh), "tensors": rows}

    @classmethod
    def from_dict(cls, value: Any, world_size: int) -> "ShardMap":
        """Read back what `to_dict` wrote, from anywhere, or raise BadManifest."""
        mesh = value.get("mesh") if isinstance(value, dict) else None
        rows = value.get("tensors") if isinstance(value, dict) else None
        if not isinstance(mesh, dict) or not 1 <= len(mesh) <= _MOST_DIMENSIONS:
            raise BadManifest("the mesh of its shards must be an object")
        for name, size in mesh.items():
            if not _NAME.fullmatch(name) or type(size) is not int or not 1 <= size <= world_size:
                raise BadManifest("the mesh of its shards must have names and sizes")
        if math.prod(mesh.values()) != world_size:
            raise BadManifest("the mesh of its shards must be of world_size ranks")
        if not isinstance(rows, dict) or len(rows) > MOST_TENSORS:
            raise BadManifest(f"its tensors must be an object of at most {MOST_TENSORS}")
        empty = cls(mesh)
        return cls(mesh, {name: empty._place(name, row) for name, row in rows.items()})

    def _place(self, name: str, row: Any) -> TensorPlace:
        if not name.isprintable() or len(name) > _LONGEST:
            raise BadManifest("the name of a tensor must be printable")
        try:
            dtype, shape, cuts, at, writer = row
            place = TensorPlace(
                dtype, tuple(shape), tuple(map(tuple, cuts)), tuple(map(tuple, at)), writer
            )
            is_sound = self._is_sound(place)
        except (TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise BadManifest(f"the place of {name[:80]!r} is malformed")
        return place

    def _is_sound(self, place: TensorPlace) -> bool:
        names = [name for name, _ in (*place.cuts, *place.at)]
        return (
            isinstance(place.dtype, str)
            and _DTYPE.fullmatch(place.dtype) is not None
            and len(place.shape) <= _MOST_DIMENSIONS
            and all(_is_count(size, _LARGEST) for size in place.shape)
            and math.prod(place.shape) <= _LARGEST
            and len(set(names)) == len(names)
            and all(name in self.mesh for name in names)
            and all(_is_count(index, len(place.shape) - 1) for _, index in place.cuts)
            and all(_is_count(index, self.mesh[name] - 1) for name, index in place.at)
            and _is_count(
                place.writer, math.prod(self.mesh[name] for name in self._replicas(place)) - 1
            )
        )

    def packed(self) -> str:
        """Return it as a short text, for a message."""
        text = json.dumps(self.to_dict(), separators=(",", ":")).encode()
        return base64.b64encode(zlib.compress(text)).decode()

    @classmethod
    def joined(cls, texts: Iterable[str], world_size: int) -> "ShardMap | None":
        """Return what packed texts of several ranks say together; None without one."""
        found: ShardMap | None = None
        for text in texts:
            one = cls.from_dict(_unpacked(text), world_size)
            if found is not None and (
                found.mesh != one.mesh or found.tensors.keys() & one.tensors.keys()
            ):
                raise BadManifest("its ranks disagree about the mesh, or about a tensor")
            found = one if found is None else replace(one, tensors={**found.tensors, **one.tensors})
        return found


def deal(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Return which of some writers writes which tensor; every rank computes the same result.

    The largest tensor first, each to the writer with the least so far: none writes more than the
    mean plus the largest tensor.
    """
    if count == 1:
        return dict.fromkeys(sizes, 0)
    loads = [(0, writer) for writer in range(count)]
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, writer = loads[0]
        heapq.heapreplace(loads, (load + sizes[name], writer))
        owners[name] = writer
    return owners


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _unpacked(text: str) -> Any:
    try:
        data = base64.b64decode(text, validate=True)
        unzipper = zlib.decompressobj()
        found = unzipper.decompress(data, _LARGEST_TEXT)
        if unzipper.unconsumed_tail:
            raise ValueError("too large")
        return json.loads(found)
    except (ValueError, zlib.error, RecursionError) as error:
        raise BadManifest(f"the places of its tensors cannot be read: {error}") from None
