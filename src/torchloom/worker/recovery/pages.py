"""A rank's private state after the forward pass of its last steps, for its next process.

A page is a file in shared memory, so it is there when its process was killed. One that was being
written then is known by its hash, which covers everything in it; the pages of other steps are in
files of their own.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from torchloom.rules.membership.election import SLOTS, inherits, slot_of
from torchloom.worker.recovery.transfer.channels import (
    Kind,
    PackedState,
    State,
    decode_kinds,
    encode_kinds,
    kinds_of,
    size_of,
    unpacked,
)

_HEAD = struct.Struct("=8sqQQQQ")  # magic, step, bytes of kinds, of tensors, of the rest; hash
_MAGIC, _NOTHING = b"loompag1", bytes(8)
_NUMBER = "life"  # a file
_ALIGNMENT = 64
_BEGIN = -(-_HEAD.size // _ALIGNMENT) * _ALIGNMENT
_SLACK = 1024  # bytes by which the plain part may grow before a page is laid out anew
_MASK = (1 << 64) - 1


class OwnPages:
    """One rank's pages, in a folder that outlives its process and belongs to one process at a time.

    What the incarnation before has left is this one's; what older ones have left is forgotten.
    """

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._slots = [_Slot(folder / f"slot-{at}") for at in range(SLOTS)]
        self._plan: _Plan | None = None
        last = _last_number(folder)
        if last != number and not inherits(last, number):
            self.drop_after(-2)
        partial = folder / f"{_NUMBER}.{os.getpid()}"
        partial.write_text(str(number))
        partial.replace(folder / _NUMBER)

    def write(self, step: int, own: State) -> None:
        """Write the state of this step; it replaces that of the third step before.

        OSError where there is no room for it.
        """
        packed = PackedState(own)
        plan, kinds = self._plan, kinds_of(packed.tensors)
        if plan is None or plan.kinds != kinds or plan.room < len(packed.plain):
            plan = self._plan = _Plan(kinds, len(packed.plain) + _SLACK)
        self._slots[slot_of(step)].write(step, plan, packed)

    def steps(self) -> tuple[int, ...]:
        """Return the steps that there are whole pages of."""
        return tuple(sorted(step for slot in self._slots if (step := slot.step()) is not None))

    def read(self, step: int) -> State | None:
        """Return the state of a step, on the CPU; None if it is missing or damaged."""
        return self._slots[slot_of(step)].read(step)

    def drop_after(self, step: int) -> None:
        """Invalidate the pages of later steps."""
        for slot in self._slots:
            found = slot.step()
            if found is None or found > step:
                slot.forget()

    def close(self) -> None:
        """Release the memory; the pages stay."""
        for slot in self._slots:
            slot.close()


class _Plan:
    """The layout of a page that has tensors of these kinds."""

    def __init__(self, kinds: Sequence[Kind], room: int) -> None:
        self.kinds = list(kinds)
        self.room = room
        self.text = encode_kinds(kinds)
        at = _aligned(_BEGIN + len(self.text))
        self.offsets, self.tensors = _offsets(kinds)
        self.begin = at
        self.plain = at + self.tensors
        self.size = -(-(self.plain + room) // mmap.PAGESIZE) * mmap.PAGESIZE


class _Slot:
    """One file: the page of one step at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._plan: _Plan | None = None
        self._memory: mmap.mmap | None = None
        self._bytes = memoryview(b"")
        self._views: list[Tensor] = []

    def write(self, step: int, plan: _Plan, packed: PackedState) -> None:
        if plan is not self._plan:
            self._lay_out(plan)
        memory, end = self._bytes, plan.plain + len(packed.plain)
        memory[:8] = _NOTHING
        if packed.tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._views, packed.tensors)
        memory[plan.plain : end] = packed.plain
        sizes = len(plan.text), plan.tensors, len(packed.plain)
        checksum = _hash(step, sizes, memory[_BEGIN:end])
        _HEAD.pack_into(memory, 0, _MAGIC, step, *sizes, checksum)

    def step(self) -> int | None:
        """Return the step of the page if it is whole."""
        found = self._found()
        return found[0] if found is not None else None

    def read(self, step: int) -> State | None:
        found = self._found()
        return found[1].state() if found is not None and found[0] == step else None

    def forget(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self._path, "r+b") as file:
            file.write(_NOTHING)

    def close(self) -> None:
        self._views = []
        self._bytes = memoryview(b"")
        self._memory = self._plan = None

    def _lay_out(self, plan: _Plan) -> None:
        """Allocate all memory for pages of this plan now, or raise OSError."""
        self.close()
        self.forget()
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, plan.size)  # a page that is missing later is a SIGBUS
            self._memory = mmap.mmap(fd, plan.size)
        finally:
            os.close(fd)
        self._bytes = memoryview(self._memory)
        self._bytes[_BEGIN : _BEGIN + len(plan.text)] = plan.text
        self._views = [
            _view(self._bytes, plan.begin + at, kind)
            for at, kind in zip(plan.offsets, plan.kinds, strict=True)
        ]
        self._plan = plan

    def _found(self) -> "tuple[int, _Content] | None":
        """Return what is in the file, checked."""
        try:
            data = memoryview(bytearray(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        if len(data) < _BEGIN:
            return None
        magic, step, *sizes, checksum = _HEAD.unpack_from(data)
        content = _Content(data, *sizes)
        if magic != _MAGIC or content.end > len(data):
            return None
        is_whole = _hash(step, sizes, data[_BEGIN : content.end]) == checksum
        return (step, content) if is_whole else None


class _Content:
    """The parts of a page that was read."""

    def __init__(self, data: memoryview, kinds: int, tensors: int, plain: int) -> None:
        self._data = data
        self._kinds = _BEGIN + kinds
        self._tensors = _aligned(self._kinds)
        self._plain = self._tensors + tensors
        self.end = self._plain + plain

    def state(self) -> State:
        kinds = decode_kinds(self._data[_BEGIN : self._kinds])
        offsets, _ = _offsets(kinds)
        copies = [
            _view(self._data, self._tensors + at, kind).clone()
            for at, kind in zip(offsets, kinds, strict=True)
        ]
        return unpacked(self._data[self._plain : self.end], copies)


def _offsets(kinds: Sequence[Kind]) -> tuple[list[int], int]:
    offsets, at = [], 0
    for kind in kinds:
        offsets.append(at)
        at = _aligned(at + size_of(kind))
    return offsets, at


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _view(memory: memoryview, at: int, kind: Kind) -> Tensor:
    dtype, shape = kind
    size = size_of(kind)
    if not size:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at)
    return flat.view(dtype).view(shape)


def _hash(step: int, sizes: Sequence[int], content: memoryview) -> int:
    """Hash a page with its head: another step's content under this head is none of it."""
    seed = step
    for size in sizes:
        seed = seed * 1_000_003 + size
    return xxhash.xxh3_64_intdigest(content, seed & _MASK)


def _last_number(folder: Path) -> int:
    try:
        return int((folder / _NUMBER).read_text())
    except (OSError, ValueError):
        return -1
