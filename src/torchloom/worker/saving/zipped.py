"""Where `torch.save` puts the bytes of each tensor, asked of torch itself and of the zip format."""

import contextlib
import mmap
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import torch
from torch.utils.serialization import config

PAGE = 4096
_LOCAL = struct.Struct("<26xHH")  # of a record's own header: the lengths of its name and extra
_LOCAL_SIZE = 30


class Record(NamedTuple):
    """One file in the zip: where its bytes begin, and how many there are."""

    offset: int
    size: int


class Layout(NamedTuple):
    """A file as `torch.save` lays it out: its size, its records, and all bytes but the tensors'."""

    size: int
    records: Mapping[str, Record]
    pieces: Sequence[tuple[int, bytes]]


class TensorSpec(NamedTuple):
    """A tensor to be, as far as a layout cares."""

    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return self.shape.numel() * self.dtype.itemsize


def stand_ins(specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
    """Return tensors of these shapes in memory that nobody touches, so that it costs nothing."""
    sizes = [-(-spec.size // PAGE) * PAGE for spec in specs]
    memory = mmap.mmap(-1, sum(sizes) or PAGE)
    return views(memory, specs, [sum(sizes[:at]) for at in range(len(sizes))])


def views(memory: Any, specs: Sequence[TensorSpec], offsets: Sequence[int]) -> list[torch.Tensor]:
    """Return tensors over memory, each with a storage of its own."""
    return [
        torch.frombuffer(memory, dtype=spec.dtype, count=spec.shape.numel(), offset=offset).view(
            spec.shape
        )
        if spec.size
        else torch.empty(spec.shape, dtype=spec.dtype, device="cpu")
        for spec, offset in zip(specs, offsets, strict=True)
    ]


def lay_out(content: Any) -> Layout:
    """Have torch lay out a file of this content, each storage at a page's start, without its data.

    The file has holes for the tensors, so it takes next to no room.
    """
    with _sparse_file() as path:
        aligned = config.patch("save.storage_alignment", PAGE)  # type: ignore[attr-defined]
        with aligned, torch.serialization.skip_data():
            torch.save(content, path)
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            found = records(file)
            return Layout(size, found, list(_between(file, found, size)))


def records(file: IO[bytes]) -> dict[str, Record]:
    """Return the records of a zip that stores them as they are, by name without the archive's."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{info.filename!r} is compressed")
            file.seek(info.header_offset)
            name, extra = _LOCAL.unpack(file.read(_LOCAL_SIZE))
            start = info.header_offset + _LOCAL_SIZE + name + extra
            found[info.filename.partition("/")[2]] = Record(start, info.file_size)
    return found


def storage_name(number: int) -> str:
    """Return the record of the n-th storage that a file mentions."""
    return f"data/{number}"


def _between(
    file: IO[bytes], found: Mapping[str, Record], size: int
) -> Iterator[tuple[int, bytes]]:
    """Yield what lies between the tensors' bytes, with its offset."""
    at = 0
    tensors = sorted(record for name, record in found.items() if name.startswith("data/"))
    for record in [*tensors, Record(size, 0)]:
        file.seek(at)
        yield at, file.read(record.offset - at)
        at = record.offset + record.size


@contextlib.contextmanager
def _sparse_file() -> Iterator[str]:
    """Give the path of an empty file in memory, or in the temporary folder where that cannot be."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("loom-layout", os.MFD_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="loom-layout-") as folder:
            yield f"{folder}/worker.pt"
