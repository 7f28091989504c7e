"""Gradients in fewer bytes: what a rank sends of a bucket, and what it has not sent yet.

A codec writes a flat tensor as bytes and adds such bytes to a tensor. What was not sent is the
rank's error, which the caller adds to the gradients of the next step. Each bucket has two slots for
it: a step reads the slot of the step before and writes the other one. They are in a file of shared
memory that the rank's next process finds. A slot is written before what it belongs to is sent, so
if any rank has the gradients of a step, every rank's slot of it exists.
"""

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from torchloom.specs.jobspec import Algorithm, Compression

_BITS = 8
NEVER = -1  # the step of a slot without content
_HEAD = 64  # bytes
_KEY, _STEPS, _COUNTS = 0, slice(1, 3), slice(3, 7)  # words of the head
_STEM = "errors"
_MASK = (1 << 62) - 1



class GradientBucket(Protocol):
    """What DDP gives a communication hook: gradients that are exchanged together."""

    def buffer(self) -> Tensor: ...
    def gradients(self) -> list[Tensor]: ...
    def parameters(self) -> list[Tensor]: ...
    def index(self) -> int: ...
    def is_last(self) -> bool: ...


class Codec(Protocol):
    """One way to write gradients in fewer bytes."""

    def encode(self, flat: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return a flat tensor, which is made of parameters of these sizes, as bytes."""

    def add(self, payload: Tensor, into: Tensor, sizes: Sequence[int]) -> None:
        """Add what bytes stand for to a flat tensor."""


class TopK:
    """The entries with the largest magnitude, and where they are."""

    def __init__(self, share: Callable[[], float]) -> None:
        self._share = share

    def encode(self, flat: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return values and positions of the largest entries."""
        count = max(1, round(self._share() * flat.numel()))
        places = flat.abs().topk(count, sorted=False).indices
        return torch.cat([_bytes(flat[places].float()), _bytes(places.int())])

    def add(self, payload: Tensor, into: Tensor, sizes: Sequence[int]) -> None:
        """Add the values at their positions; each position is there once."""
        values, places = payload.chunk(2)
        into.index_add_(0, places.view(torch.int32), values.view(torch.float32).to(into.dtype))


class OneBit:
    """The sign of each entry, and the mean magnitude of each parameter."""

    def encode(self, flat: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the mean magnitudes and the packed signs."""
        scales = torch.stack([part.abs().mean().float() for part in torch.split(flat, list(sizes))])
        signs = flat.new_zeros(-(-flat.numel() // _BITS) * _BITS, dtype=torch.uint8)
        signs[: flat.numel()] = flat >= 0
        rows = signs.view(-1, _BITS)
        packed = rows[:, 0].clone()
        for bit in range(1, _BITS):
            packed |= rows[:, bit] << bit
        return torch.cat([_bytes(scales), packed])

    def add(self, payload: Tensor, into: Tensor, sizes: Sequence[int]) -> None:
        """Add plus or minus the mean magnitude to each entry."""
        head = 4 * len(sizes)
        scales = payload[:head].view(torch.float32).to(into.dtype)
        packed = payload[head:]
        signs = torch.stack([packed >> bit & 1 for bit in range(_BITS)], 1).flatten()
        signs = signs[: into.numel()].to(into.dtype).mul_(2).sub_(1)
        for part, sign, scale in zip(
            torch.split(into, list(sizes)), torch.split(signs, list(sizes)), scales, strict=True
        ):
            part.addcmul_(sign, scale)


class Int8:
    """Each entry as a whole number from -127 to 127, with one scale for a block of entries."""

    def __init__(self, block: int) -> None:
        self._block = block

    def encode(self, flat: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the scales and the numbers."""
        rows = self._rows(flat)
        scales = rows.abs().amax(1).float().div_(127)
        divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
        numbers = rows.div(divisors[:, None].to(rows.dtype)).round_().to(torch.int8)
        return torch.cat([_bytes(scales), _bytes(numbers.flatten()[: flat.numel()])])

    def add(self, payload: Tensor, into: Tensor, sizes: Sequence[int]) -> None:
        """Add the numbers times their scales."""
        head = 4 * -(-into.numel() // self._block)
        scales = payload[:head].view(torch.float32).to(into.dtype)
        numbers = self._rows(payload[head:].view(torch.int8).to(into.dtype))
        into.add_(numbers.mul_(scales[:, None]).flatten()[: into.numel()])

    def _rows(self, flat: Tensor) -> Tensor:
        """Return a flat tensor in blocks, the last one filled with zeros."""
        missing = -flat.numel() % self._block
        return torch.nn.functional.pad(flat, (0, missing)).view(-1, self._block)


def codec_of(options: Compression, share: Callable[[], float]) -> Codec | None:
    """Return the codec of an algorithm; None for one that is torch's own hook.

    Args:
        options: The section of the job, with its defaults.
        share: Returns the share of entries that `topk` sends now.
    """
    match options.algorithm:
        case Algorithm.TOPK:
            return TopK(share)
        case Algorithm.ONEBIT:
            return OneBit()
        case Algorithm.INT8:
            return Int8(options.block or 1)
    return None


def exchange(codec: Codec, flat: Tensor, sizes: Sequence[int], error: Tensor) -> Tensor:
    """Write this rank's part of a mean, and what it leaves out; return the part.

    `flat` becomes what is sent plus the error that is left, which is in `error` afterwards.
    """
    payload = codec.encode(flat, sizes)
    sent = torch.zeros_like(flat)
    codec.add(payload, sent, sizes)
    torch.sub(flat, sent, out=error)
    return payload


def mean_of(
    codec: Codec, payload: Tensor, into: Tensor, sizes: Sequence[int]
) -> "torch.futures.Future[Tensor]":
    """Send a part to all ranks, and return the mean of all parts, in `into`. A collective call."""
    parts = [torch.empty_like(payload) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, payload, async_op=True)

    def decoded(gathered: "torch.futures.Future[object]") -> Tensor:
        gathered.value()  # raises what became of a peer
        into.zero_()
        for part in parts:  # in the order of the ranks: all of them get the same bits
            codec.add(part, into, sizes)
        return into.div_(len(parts))

    found: torch.futures.Future[Tensor] = work.get_future().then(decoded)
    return found


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


# What is left for the next step.


class BucketSlots:
    """The two slots of one bucket: its error, and numbers that PowerSGD continues with."""

    def __init__(self, head: Tensor, room: Tensor, size: int) -> None:
        self._head = head
        self._rooms = room.view(2, -1)
        self._size = size
        self._source = self._target = 0

    @property
    def newest(self) -> int:
        """The newest step of a slot; NEVER without one."""
        return int(self._head[_STEPS].max())

    def enter(self, step: int) -> bool:
        """Begin to write a step; tell whether there is one to continue with."""
        steps = self._head[_STEPS].tolist()
        self._source = int(steps[1] > steps[0])
        is_again = steps[self._source] == step  # another pass of this step
        self._target = self._source if is_again else 1 - self._source
        return bool(steps[self._source] != NEVER)

    def leave(self, step: int) -> None:
        """Mark what was written as that of a step."""
        self._head[1 + self._target] = step

    @property
    def error(self) -> Tensor:
        """The error of the step before."""
        return self._rooms[self._source, : self._size]

    @property
    def next_error(self) -> Tensor:
        """The error of this step, to be filled."""
        if self._target != self._source:
            self._head[1 + self._target] = NEVER
        return self._rooms[self._target, : self._size]

    @property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """Both factors of the step before; empty without any."""
        first, second = self._head[_COUNTS][2 * self._source : 2 * self._source + 2].tolist()
        rest = self._rooms[self._source, self._size :]
        return rest[:first], rest[first : first + second]

    def keep_matrices(self, first: Tensor, second: Tensor) -> None:
        """Fill in both factors of this step."""
        at = 3 + 2 * self._target
        self._head[at], self._head[at + 1] = first.numel(), second.numel()
        rest = self._rooms[self._target, self._size :]
        rest[: first.numel()].copy_(first)
        rest[first.numel() : first.numel() + second.numel()].copy_(second)

    def look(self) -> None:
        """Have `error` and `matrices` be those of the newest step."""
        self.enter(NEVER - 1)

    def drop_from(self, step: int) -> None:
        """Forget this step and later ones: it is repeated."""
        steps = self._head[_STEPS]
        steps[steps >= step] = NEVER


class ErrorMemory:
    """The slots of all buckets of one model, by their number."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.why_unkept = "" if folder is not None else "there is no keeper"
        self.slots: dict[int, BucketSlots] = {}
        self._folder = folder
        self._stem = f"{_STEM}-{name}-".replace("/", "_")
        self._inherited = NEVER  # a newcomer's first step

    def open(self, index: int, key: str, size: int, more: int, like: Tensor) -> BucketSlots:
        """Return the slots of a bucket; `key` says what its numbers belong to."""
        slots = self.slots.get(index)
        if slots is None:
            slots = self.slots[index] = self._opened(index, key, size, more, like)
        return slots

    def inherit(self, start: int) -> None:
        """Continue, at a step, with what the process before has left."""
        self._inherited = start

    def left(self) -> int:
        """Return for how many buckets the process before has left slots."""
        if self._folder is None:
            return 0
        return len(list(self._folder.glob(f"{self._stem}*")))

    def drop_from(self, step: int) -> None:
        """Forget a step and later ones in all slots."""
        for slots in self.slots.values():
            slots.drop_from(step)

    def forget(self) -> None:
        """Begin without errors."""
        self.slots.clear()
        self._inherited = NEVER
        if self._folder is not None:
            for path in self._folder.glob(f"{self._stem}*"):
                path.unlink(missing_ok=True)

    def _opened(self, index: int, key: str, size: int, more: int, like: Tensor) -> BucketSlots:
        word = xxhash.xxh3_64_intdigest(f"{key}/{size}/{more}/{like.dtype}".encode()) & _MASK
        if self._folder is not None and like.device.type == "cpu":
            path = self._folder / f"{self._stem}{index}"
            try:
                return self._in_file(path, word, size, more, like.dtype)
            except OSError as error:
                self.why_unkept = f"no room for errors of compression in {path.parent}: {error}"
                sys.stderr.write(f"loom: a loss means a restart: {self.why_unkept}\n")
        elif like.device.type != "cpu":
            self.why_unkept = f"errors of compression are on {like.device.type}"
        head = torch.zeros(_HEAD // 8, dtype=torch.int64)
        head[_STEPS] = NEVER
        return BucketSlots(head, like.new_zeros(2 * (size + more)), size)

    def _in_file(
        self, path: Path, word: int, size: int, more: int, dtype: torch.dtype
    ) -> BucketSlots:
        assert self._folder is not None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        count = 2 * (size + more)
        length = _HEAD + count * dtype.itemsize
        if self._inherited == NEVER or not path.exists() or path.stat().st_size != length:
            path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, length)
            memory = mmap.mmap(fd, length)
        finally:
            os.close(fd)
        head = torch.frombuffer(memory, dtype=torch.int64, count=_HEAD // 8)
        room = torch.frombuffer(memory, dtype=dtype, count=count, offset=_HEAD)
        if int(head[_KEY]) != word:
            head[_STEPS], head[_COUNTS] = NEVER, 0
            room.zero_()
            head[_KEY] = word
        slots = BucketSlots(head, room, size)
        if self._inherited != NEVER:
            slots.drop_from(self._inherited)
        return slots


def split_by(flat: Tensor, names: Sequence[str], shapes: Sequence[torch.Size]) -> dict[str, Tensor]:
    """Return the parts of a flat tensor, by the names of the parameters that it is made of."""
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
