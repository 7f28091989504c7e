"""A shard's file in memory, byte by byte: laid out once by torch, filled anew at every save.

The layout depends on the tensors' shapes and on nothing else. The pickled part has more room than
it needs, so that other numbers and words fit the next time; an unpickler stops at its end.
"""

import ctypes
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchloom.worker.saving.staging import Staging
from torchloom.worker.saving.zipped import (
    PAGE,
    TensorSpec,
    lay_out,
    stand_ins,
    storage_name,
    views,
)

FORMAT = 1
_PROTOCOL = 2  # what torch.save writes and its careful unpickler reads
_BEGIN, _END = 2, 1  # bytes of a pickle before and after its content
_CLOSE = b"u."  # the items of the outermost dictionary end, and so does the pickle
_SLACK = 64 * 1024
_REST = "rest"  # the key whose place the changing values take

Groups = Mapping[str, Mapping[str, torch.Tensor]]
Signature = tuple[tuple[str, tuple[tuple[str, TensorSpec], ...]], ...]


def signature(groups: Groups) -> Signature:
    """Return what decides a layout: the names, types and shapes, group by group."""
    return tuple(
        (
            group,
            tuple((name, TensorSpec(item.dtype, item.shape)) for name, item in tensors.items()),
        )
        for group, tensors in groups.items()
    )


def pickled(rest: Mapping[str, Any]) -> bytes:
    """Return the changing values as the inside of a pickled dictionary: key, value, key, value."""
    parts = (part for item in rest.items() for part in item)
    return b"".join(pickle.dumps(part, protocol=_PROTOCOL)[_BEGIN:-_END] for part in parts)


class Image:
    """The bytes of a file with tensors of one signature, in the staging memory."""

    def __init__(self, of: Signature, room: int, staging: Staging, pin: bool) -> None:
        self.signature = of
        specs = [spec for _, named in of for _, spec in named]
        layout = lay_out(self._content(stand_ins(specs), room + _SLACK))
        offsets = [layout.records[storage_name(at)].offset for at in range(len(specs))]
        staging.ensure(-(-layout.size // PAGE) * PAGE, pin)
        self._bytes = memoryview(staging.memory)[: layout.size]
        for at, piece in layout.pieces:
            self._bytes[at : at + len(piece)] = piece
        head = layout.records["data.pkl"]
        self._head = self._bytes[head.offset : head.offset + head.size]
        self._fixed = _before(bytes(self._head), _REST)
        self._tensors = views(staging.memory, specs, offsets)

    def has_room(self, rest: bytes) -> bool:
        """Tell whether the changing values fit."""
        return len(self._fixed) + len(rest) + len(_CLOSE) <= len(self._head)

    def fill(self, tensors: Sequence[torch.Tensor], rest: bytes, alone: bool = False) -> None:
        """Copy the state in; when it returns, the originals may change.

        torch copies with several threads, that wait for each other at every tensor. `alone` has
        the calling thread do it, for when they would wait for a core.
        """
        with torch.no_grad():
            for place, tensor in zip(self._tensors, tensors, strict=True):
                if alone and _is_plain(tensor):
                    ctypes.memmove(place.data_ptr(), tensor.data_ptr(), place.nbytes)
                else:
                    place.copy_(tensor, non_blocking=tensor.is_cuda)
        text = self._fixed + rest + _CLOSE
        self._head[: len(text)] = text
        self._head[len(text) :] = bytes(len(self._head) - len(text))
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    @property
    def content(self) -> memoryview:
        """Return the bytes of the file."""
        return self._bytes

    def _content(self, tensors: Sequence[torch.Tensor], room: int) -> dict[str, Any]:
        """Return what the file holds, with a place for the changing values at the end."""
        left = iter(tensors)
        groups = {group: {name: next(left) for name, _ in named} for group, named in self.signature}
        return {"format": FORMAT, **groups, _REST: " " * room}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's memory is its values, one after the other."""
    odd = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not odd


def _before(pickle_bytes: bytes, key: str) -> bytes:
    """Return a pickle up to the last place that has this key."""
    found = pickle_bytes.rfind(pickle.dumps(key, protocol=_PROTOCOL)[_BEGIN:-3])
    if found < 0:
        raise RuntimeError("this torch pickles in a way that is not known here")
    return pickle_bytes[:found]
