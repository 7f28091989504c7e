"""A state as it travels: a head with all that is small, and large tensors behind it in chunks.

The head begins with where the large tensors are in the source's memory. In a file every one of them
has pages of its own, so that a target can keep the memory it came in.
"""

import array
import mmap
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from torchloom.errors import Failure
from torchloom.worker.recovery.transfer.channels import (
    Kind,
    PackedState,
    State,
    bytes_of,
    chunks_of,
    decode_kinds,
    encode_kinds,
    fresh,
    hash_of,
    kinds_of,
    receive_numbers,
    send_numbers,
    size_of,
    unpacked,
)

LARGE = 512 << 10  # bytes
_ALIGNMENT = 64
_ADDRESS = 8  # bytes
LABEL = 6  # words
WORDS = 1 + LABEL + 3  # the way, what comes, how much of it is there, whose memory, where in it


@dataclass(frozen=True, slots=True)
class Label:
    """What a target must know before the data arrives."""

    large: int  # tensors
    chunks: int  # of these
    kinds: int  # bytes
    plain: int
    head: int
    hash: int  # of the head

    @property
    def words(self) -> list[int]:
        """Return it as numbers."""
        return list(astuple(self))


class StatePayload:
    """A state that is sent; its tensors are read, not changed."""

    def __init__(self, state: State) -> None:
        packed = PackedState(state)
        kinds = kinds_of(packed.tensors)
        dense = [_dense(tensor) for tensor in packed.tensors]
        self._large = [one for one, kind in zip(dense, kinds, strict=True) if _is_large(kind)]
        small = [one for one, kind in zip(dense, kinds, strict=True) if not _is_large(kind)]
        large = [bytes_of(tensor) for tensor in self._large]
        self.chunks = [chunk for view in large for chunk in chunks_of(view)]
        text = encode_kinds(kinds)
        addresses = array.array("q", [tensor.data_ptr() for tensor in self._large])
        first = addresses.tobytes() + text + packed.plain
        self.head = memoryview(bytearray(_head(first, [bytes_of(tensor) for tensor in small])))
        counts = len(large), len(self.chunks), len(text), len(packed.plain), len(self.head)
        self.label = Label(*counts, hash_of(self.head))
        places, self.size = _places(kinds, len(self.head))
        self.places = [
            place + at
            for place, view in zip(places, large, strict=True)
            for at in _starts(chunks_of(view))
        ]


class PayloadHead:
    """What a target gets first of a state; it describes the rest."""

    def __init__(self, label: Label) -> None:
        self.view = memoryview(bytearray(label.head))
        self._label = label
        self._own: dict[int, Tensor] = {}

    def is_whole(self) -> bool:
        """Return whether it is what was given."""
        return hash_of(self.view) == self._label.hash

    @property
    def addresses(self) -> Sequence[int]:
        """Return where in the source's memory the large tensors are."""
        return array.array("q", bytes(self.view[: _ADDRESS * self._label.large]))

    def large(self) -> list[tuple[int, int]]:
        """Return where in a file the large tensors are, and how large."""
        places, _ = _places(self._kinds, len(self.view))
        sizes = [size_of(kind) for kind in self._kinds if _is_large(kind)]
        return list(zip(places, sizes, strict=True))

    def rooms(self, own: Sequence[Tensor]) -> list[memoryview]:
        """Return memory for the large tensors: that of our own in its place if it fits, or new."""
        pairs = enumerate(zip(own, self._kinds, strict=False))
        self._own = {
            at: tensor for at, (tensor, kind) in pairs if _is_large(kind) and _fits(tensor, kind)
        }
        return [
            bytes_of(self._own[at]) if at in self._own else fresh(size_of(kind))
            for at, kind in enumerate(self._kinds)
            if _is_large(kind)
        ]

    def state(self, large: Sequence[memoryview]) -> State:
        """Return the state, with this memory for its large tensors."""
        left = iter(large)
        place = _aligned(self._text_end + self._label.plain)
        tensors = []
        for at, (dtype, shape) in enumerate(self._kinds):
            size = size_of((dtype, shape))
            if _is_large((dtype, shape)):
                view = next(left)
                is_own = at in self._own
                tensors.append(self._own[at] if is_own else _tensor(view, dtype, shape))
            else:
                tensors.append(_tensor(self.view[place : place + size], dtype, shape).clone())
                place = _aligned(place + size)
        return unpacked(self.view[self._text_end : self._text_end + self._label.plain], tensors)

    @property
    def _text_end(self) -> int:
        return _ADDRESS * self._label.large + self._label.kinds

    @cached_property
    def _kinds(self) -> list[Kind]:
        return decode_kinds(self.view[_ADDRESS * self._label.large : self._text_end])


def _head(first: bytes, small: Sequence[memoryview]) -> bytes:
    """Return the head: what all needs, and the small tensors, each where it may be computed on."""
    parts: list[memoryview] = []
    for part in (memoryview(first), *small):
        parts += [part, memoryview(bytes(_aligned(len(part)) - len(part)))]
    return b"".join(parts)


def _places(kinds: Sequence[Kind], head: int) -> tuple[list[int], int]:
    """Return where in a file each large tensor begins, and where all ends."""
    places, place = [], _paged(head)
    for kind in filter(_is_large, kinds):
        places.append(place)
        place = _paged(place + size_of(kind))
    return places, place


def _starts(chunks: Sequence[memoryview]) -> list[int]:
    starts, at = [], 0
    for chunk in chunks:
        starts.append(at)
        at += len(chunk)
    return starts


def _is_large(kind: Kind) -> bool:
    return size_of(kind) >= LARGE


def _fits(tensor: Tensor, kind: Kind) -> bool:
    """Return whether a tensor of ours can be filled as it is with one of this kind."""
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    is_same = (tensor.dtype, tensor.shape) == kind and tensor.is_contiguous()
    return is_plain and is_same and not tensor.is_conj() and not tensor.is_neg()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _paged(size: int) -> int:
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _tensor(view: memoryview, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """Return a tensor on this memory, which it keeps."""
    if not len(view):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(view, dtype=torch.uint8).view(dtype).view(shape)


_NOTHING = Label(0, 0, 0, 0, 0, 0)


class NotTaken(Failure):
    """A state did not come whole; what the member had is untouched, unless it was new."""

    code = "not_taken"


class TransferWay(IntEnum):
    """How a state comes."""

    NONE = 0
    FILE = 1
    GROUP = 2
    MEMORY = 3


@dataclass(frozen=True, slots=True)
class StateMove:
    """What goes from where to where."""

    source: int
    what: str
    step: int
    targets: tuple[int, ...]
    is_near: bool  # they share memory
    stem: Path

    def file(self, target: int) -> Path:
        """Return the name under which a target finds the file, and removes it."""
        return self.stem.with_name(f"{self.stem.name}-{target}")

    @property
    def peers(self) -> list[int]:
        """Return the targets that need a transfer."""
        return [target for target in self.targets if target != self.source]


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """What a source sends first."""

    way: TransferWay
    label: Label = _NOTHING
    ready: int = 0  # chunks that are in the file
    pid: int = 0
    address: int = 0  # of the head

    @property
    def words(self) -> list[int]:
        """Return it as numbers."""
        return [self.way, *self.label.words, self.ready, self.pid, self.address]

    def send(self, peers: Sequence[int]) -> None:
        """Send it to the targets."""
        send_numbers(peers, self.words)


def receive_offer(source: int) -> TransferOffer:
    """Return what a source offers next."""
    way, *label, ready, pid, address = receive_numbers(source, WORDS)
    return TransferOffer(TransferWay(way), Label(*label), ready, pid, address)
