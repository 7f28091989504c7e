"""The image of a shard's file in memory: laid out once by torch, filled at every save.

The layout depends on the shapes of the tensors only. The pickled part has spare room, so that
other plain values fit at the next save; an unpickler stops at its end.
"""

import contextlib
import ctypes
import mmap
import os
import pickle
import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import torch
from torch.utils.serialization import config

_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, Linux 4.14
PAGE = 4096
_LOCAL = struct.Struct("<26xHH")  # of a record's own header: the lengths of its name and extra
_LOCAL_SIZE = 30
FORMAT = 1
_PROTOCOL = 2  # what torch.save writes and its safe unpickler reads
_BEGIN, _END = 2, 1  # bytes of a pickle before and after its content
_CLOSE = b"u."  # the items of the outermost dictionary end, and so does the pickle
_SLACK = 64 * 1024
_REST = "rest"  # the key that the changing values replace


class Staging:
    """Page-aligned memory that is reused, and grows if necessary.

    A fork sees it as zeros, so that no page is copied on the next write. It is pinned if the state
    is on a GPU.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pinned = 0  # address

    @property
    def memory(self) -> mmap.mmap:
        """Return the memory; views of it keep it alive."""
        if self._memory is None:
            raise RuntimeError("nothing is staged yet")
        return self._memory

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._memory) if self._memory is not None else 0

    def ensure(self, size: int, pin: bool) -> None:
        """Allocate at least this much memory; growing discards the contents."""
        if self.size < size:
            self.free()
            self._memory = _allocated(size)
        if pin and not self._pinned:
            address = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
            if int(_cudart().cudaHostRegister(address, self.size, 0)) == 0:
                self._pinned = address

    def free(self) -> None:
        """Free the memory once no view of it is left."""
        if self._pinned:
            _cudart().cudaHostUnregister(self._pinned)
        self._memory, self._pinned = None, 0


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _allocated(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        for advice in (mmap.MADV_HUGEPAGE, _WIPE_ON_FORK):
            with contextlib.suppress(OSError):  # a kernel without it: slower, not wrong
                memory.madvise(advice)
    torch.frombuffer(memory, dtype=torch.uint8).zero_()  # allocates every page
    return memory


class ZipRecord(NamedTuple):
    """One file in the zip: the offset of its bytes, and their number."""

    offset: int
    size: int


class Layout(NamedTuple):
    """A file as `torch.save` lays it out: size, records, and all bytes but those of tensors."""

    size: int
    records: Mapping[str, ZipRecord]
    pieces: Sequence[tuple[int, bytes]]


class TensorSpec(NamedTuple):
    """What a layout depends on: the type and the shape of a tensor."""

    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return self.shape.numel() * self.dtype.itemsize


def stand_ins(specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Return tensors of these shapes in memory that is never touched, so that it costs nothing."""
    sizes = [-(-spec.size // PAGE) * PAGE for spec in specs]
    memory = mmap.mmap(-1, sum(sizes) or PAGE)
    return views(memory, specs, [sum(sizes[:at]) for at in range(len(sizes))])


def views(memory: Any, specs: Sequence[TensorSpec], offsets: Sequence[int]) -> list[torch.Tensor]:
    """Return tensors as views of memory, each with its own storage."""
    return [
        torch.frombuffer(memory, dtype=spec.dtype, count=spec.shape.numel(), offset=offset).view(
            spec.shape
        )
        if spec.size
        else torch.empty(spec.shape, dtype=spec.dtype, device="cpu")
        for spec, offset in zip(specs, offsets, strict=True)
    ]


def lay_out(content: Any) -> Layout:
    """Have torch lay out a file of this content, each storage page-aligned, without its data.

    The file is sparse, so it takes almost no space.
    """
    with _sparse_file() as path:
        aligned = config.patch("save.storage_alignment", PAGE)  # type: ignore[attr-defined]
        with aligned, torch.serialization.skip_data():
            torch.save(content, path)
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            found = records(file)
            return Layout(size, found, list(_between(file, found, size)))


def records(file: IO[bytes]) -> dict[str, ZipRecord]:
    """Return the records of an uncompressed zip, by name without the archive's prefix."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{info.filename!r} is compressed")
            file.seek(info.header_offset)
            name, extra = _LOCAL.unpack(file.read(_LOCAL_SIZE))
            start = info.header_offset + _LOCAL_SIZE + name + extra
            found[info.filename.partition("/")[2]] = ZipRecord(start, info.file_size)
    return found


def storage_name(number: int) -> str:
    """Return the name of the record of the n-th storage."""
    return f"data/{number}"


def _between(
    file: IO[bytes], found: Mapping[str, ZipRecord], size: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes between those of the tensors, with their offsets."""
    at = 0
    tensors = sorted(record for name, record in found.items() if name.startswith("data/"))
    for record in [*tensors, ZipRecord(size, 0)]:
        file.seek(at)
        yield at, file.read(record.offset - at)
        at = record.offset + record.size


@contextlib.contextmanager
def _sparse_file() -> Iterator[str]:
    """Yield the path of an empty file in memory, or else in a temporary folder."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("loom-layout", os.MFD_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="loom-layout-") as folder:
            yield f"{folder}/worker.pt"


Groups = Mapping[str, Mapping[str, torch.Tensor]]
Signature = tuple[tuple[str, tuple[tuple[str, TensorSpec], ...]], ...]


def signature(groups: Groups) -> Signature:
    """Return what a layout depends on: names, types and shapes, by group."""
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
    """The bytes of a shard with tensors of one signature, in staging memory."""

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
        """Copy the state into the image; afterwards the originals may change.

        torch copies with several threads, which wait for each other at every tensor. With `alone`
        the calling thread copies, for machines without free cores.
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
        """Return the contents of the file, with room for the changing values at the end."""
        left = iter(tensors)
        groups = {group: {name: next(left) for name, _ in named} for group, named in self.signature}
        return {"format": FORMAT, **groups, _REST: " " * room}


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether the memory of a tensor is its values in order."""
    odd = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not odd


def _before(pickle_bytes: bytes, key: str) -> bytes:
    """Return a pickle up to the last occurrence of this key."""
    found = pickle_bytes.rfind(pickle.dumps(key, protocol=_PROTOCOL)[_BEGIN:-3])
    if found < 0:
        raise RuntimeError("this version of torch pickles in an unknown way")
    return pickle_bytes[:found]
