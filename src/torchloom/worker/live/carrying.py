"""Carry bytes from a member to others: by a file in shared memory, or sent by the group.

On a busy machine it is not bytes that take time but processes that wake each other up. So a state
of a few chunks takes one word from its source to its target, and no answer.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed
import xxhash
from torch import Tensor

CHUNK = 16 << 20  # bytes
PART = 4  # chunks in a file that are told of together

_dist: Any = torch.distributed  # torch declares no types for these
_BYTE = torch.uint8
_AHEAD = 3  # chunks on their way at a time
_WORDS, _BYTES = 1, 2  # tags
_FAILED = -1


class Interrupted(Exception):
    """The source could not give all of it."""


def tell(peers: Iterable[int], words: Sequence[int]) -> None:
    """Send numbers to members that wait for them."""
    for peer in peers:
        _dist.send(torch.tensor(words, dtype=torch.int64), peer, tag=_WORDS)


def hear(peer: int, count: int) -> list[int]:
    """Return the numbers that a member sends."""
    words = torch.zeros(count, dtype=torch.int64)
    _dist.recv(words, peer, tag=_WORDS)
    told: list[int] = words.tolist()
    return told


# Through a file.


def write(
    fd: int,
    head: memoryview,
    parts: Sequence[tuple[int, memoryview]],
    peers: Sequence[int],
    words: Sequence[int],
) -> None:
    """Write the head, and parts to their places, and tell the targets how many are there.

    `words` come before that when it is told for the first time.
    """
    try:
        _put(fd, 0, head)
        for begin in range(0, len(parts), PART):
            if begin:
                tell(peers, [*words, begin])
                words = ()
            _put_all(fd, parts[begin : begin + PART])
    except OSError:
        tell(peers, [*words, _FAILED])
        raise
    tell(peers, [*words, len(parts)])


def arrivals(count: int, source: int, ready: int) -> Iterator[int]:
    """Yield the number of each chunk as soon as it is in the file; so many are there."""
    for at in range(count):
        while 0 <= ready <= at:
            (ready,) = hear(source, 1)
        if ready < 0:
            raise Interrupted
        yield at


def mapped(fd: int, place: int, size: int, is_alone: bool) -> memoryview:
    """Return a part of the file as memory of our own: all of it, or what we change of it."""
    kind = mmap.MAP_SHARED if is_alone else mmap.MAP_PRIVATE
    return memoryview(mmap.mmap(fd, size, flags=kind, offset=place))


def _put_all(fd: int, parts: Sequence[tuple[int, memoryview]]) -> None:
    """Write several chunks at once: most of the time goes into pages that are new."""
    if len(parts) == 1:
        _put(fd, *parts[0])
        return
    with ThreadPoolExecutor(min(PART, os.cpu_count() or 1)) as pool:
        for done in [pool.submit(_put, fd, *part) for part in parts]:
            done.result()


def _put(fd: int, place: int, chunk: memoryview) -> None:
    if os.pwrite(fd, chunk, place) != len(chunk):
        raise OSError("a file took a part of a chunk only")


# By the group.


def send(chunks: Iterable[memoryview], peers: Sequence[int]) -> None:
    """Send chunks, some ahead; come back when all are out of our hands."""
    under_way: list[list[Any]] = []
    for chunk in chunks:
        tensor = torch.frombuffer(chunk, dtype=_BYTE)
        under_way.append([_dist.isend(tensor, peer, tag=_BYTES) for peer in peers])
        if len(under_way) > _AHEAD:
            _finish(under_way.pop(0))
    for works in under_way:
        _finish(works)


def receive(chunks: Sequence[memoryview], source: int) -> Iterator[int]:
    """Fill chunk after chunk with what comes; yield the number of each."""
    coming: list[Any] = []
    for at in range(len(chunks)):
        for later in chunks[at + len(coming) : at + 1 + _AHEAD]:
            room = torch.frombuffer(later, dtype=_BYTE)
            coming.append(_dist.irecv(room, source, tag=_BYTES))
        _finish([coming.pop(0)])
        yield at


def _finish(works: Iterable[Any]) -> None:
    for work in works:
        work.wait()


# Bytes.


def chunks_of(view: memoryview) -> list[memoryview]:
    """Return bytes in chunks of one size, but for the last."""
    return [view[at : at + CHUNK] for at in range(0, len(view), CHUNK)]


def hash_of(chunk: memoryview) -> int:
    """Return a hash of the bytes, as a number that fits into a tensor of words."""
    return xxhash.xxh3_64_intdigest(chunk) - (1 << 63)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a dense tensor on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    flat: Any = tensor.detach().reshape(-1).view(_BYTE).numpy()
    return memoryview(flat)
