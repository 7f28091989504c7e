"""Carry bytes from a member to others: by a file in shared memory, or sent by the group.

On a busy machine it is not bytes that take time but processes that wake each other up. So a state
of a few chunks takes one word from its source to its target, and no answer.
"""

import contextlib
import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed
import xxhash
from torch import Tensor

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SET_PTRACER = 0x59616D61
_ANY_PROCESS, _NO_PROCESS = ctypes.c_ulong(-1), ctypes.c_ulong(0)
_BY_CONSENT = "1"  # a process allows others to read it
CHUNK = 16 << 20  # bytes
PART = 4  # chunks in a file that are announced together
T = TypeVar("T")
U = TypeVar("U")
_BYTE = torch.uint8
_AHEAD = 3  # chunks on their way at a time
_WORDS, _BYTES = 1, 2  # tags
_FAILED = -1
_HALF = 1 << 63


class _IoVector(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(pid: int, address: int, into: memoryview) -> None:
    """Fill memory of ours with that of another process; OSError where that cannot be."""
    ours, done = address_of(into), 0
    while done < len(into):
        left = len(into) - done
        here, there = _IoVector(ours + done, left), _IoVector(address + done, left)
        got = _library().process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += got


def address_of(view: memoryview) -> int:
    """Return where memory that may be written to begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


@contextlib.contextmanager
def readable_memory() -> Iterator[None]:
    """Allow other processes of this user to read our memory, where the kernel asks for that."""
    is_asked = _scope() == _BY_CONSENT
    if is_asked:
        _library().prctl(_SET_PTRACER, _ANY_PROCESS, 0, 0, 0)
    try:
        yield
    finally:
        if is_asked:
            _library().prctl(_SET_PTRACER, _NO_PROCESS, 0, 0, 0)


def can_be_read() -> bool:
    """Return whether this system can read the memory of other processes."""
    return hasattr(_library(), "process_vm_readv")


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # a system without it
        library.process_vm_readv.restype = ctypes.c_ssize_t
        library.process_vm_readv.argtypes = [
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
            *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
        ]
    return library


def _scope() -> str:
    try:
        return _SCOPE.read_text().strip()
    except OSError:
        return ""


_dist: Any = torch.distributed  # torch declares no types for these


class TransferInterrupted(Exception):
    """The source could not give all of it."""


def send_numbers(peers: Iterable[int], words: Sequence[int]) -> None:
    """Send numbers to members that wait for them."""
    for peer in peers:
        _dist.send(torch.tensor(words, dtype=torch.int64), peer, tag=_WORDS)


def receive_numbers(peer: int, count: int) -> list[int]:
    """Return the numbers that a member sends."""
    words = torch.zeros(count, dtype=torch.int64)
    _dist.recv(words, peer, tag=_WORDS)
    numbers: list[int] = words.tolist()
    return numbers


# Through a file.


def write_chunks(
    fd: int,
    head: memoryview,
    parts: Sequence[tuple[int, memoryview]],
    peers: Sequence[int],
    offer: Callable[[int], Sequence[int]],
) -> None:
    """Write the head and the parts, and report to the targets how many are there.

    That is a part of the `offer` when it is sent for the first time. The hashes come last.
    """
    hashes: list[int] = []
    words = offer
    try:
        _put(fd, 0, head)
        for begin in range(0, len(parts), PART):
            if begin:
                send_numbers(peers, words(begin))
                words = _alone
            group = parts[begin : begin + PART]
            hashes += at_once(lambda part: _put(fd, *part), group, PART)
    except OSError:
        send_numbers(peers, words(_FAILED))
        raise
    send_numbers(peers, words(len(parts)))
    if hashes:
        send_numbers(peers, hashes)


def arrivals(count: int, source: int, ready: int) -> Iterator[int]:
    """Yield the number of each chunk as soon as it is in the file; so many are there."""
    for at in range(count):
        while 0 <= ready <= at:
            (ready,) = receive_numbers(source, 1)
        if ready < 0:
            raise TransferInterrupted
        yield at


def mapped(fd: int, place: int, size: int, is_alone: bool) -> memoryview:
    """Return a part of the file as memory of our own: all of it, or what we change of it."""
    kind = mmap.MAP_SHARED if is_alone else mmap.MAP_PRIVATE
    return memoryview(mmap.mmap(fd, size, flags=kind, offset=place))


def _alone(count: int) -> list[int]:
    return [count]


def _put(fd: int, place: int, chunk: memoryview) -> int:
    """Write a chunk, and return its hash."""
    if os.pwrite(fd, chunk, place) != len(chunk):
        raise OSError("a file took a part of a chunk only")
    return hash_of(chunk)


# By the group.


def send_chunks(chunks: Iterable[memoryview], peers: Sequence[int]) -> None:
    """Send chunks, some ahead; return when all are sent."""
    under_way: list[list[Any]] = []
    for chunk in chunks:
        tensor = torch.frombuffer(chunk, dtype=_BYTE)
        under_way.append([_dist.isend(tensor, peer, tag=_BYTES) for peer in peers])
        if len(under_way) > _AHEAD:
            _finish(under_way.pop(0))
    for works in under_way:
        _finish(works)


def receive_chunks(chunks: Sequence[memoryview], source: int) -> Iterator[int]:
    """Fill chunk after chunk with what arrives; yield the number of each."""
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
    return xxhash.xxh3_64_intdigest(chunk) - _HALF


def hashes_of(chunks: Sequence[memoryview]) -> list[int]:
    """Return the hash of each."""
    return at_once(hash_of, chunks, PART)


class Digest:
    """The hash of bytes that come in parts."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, part: memoryview) -> None:
        """Add the next part."""
        self._hash.update(part)

    @property
    def value(self) -> int:
        """Return what `hash_of` is of all of it."""
        return self._hash.intdigest() - _HALF


def at_once(do: Callable[[T], U], parts: Sequence[T], most: int) -> list[U]:
    """Call a function for several parts at once, and return the results."""
    threads = min(most, len(parts), os.cpu_count() or 1)
    if threads <= 1:
        return [do(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return [done.result() for done in [pool.submit(do, part) for part in parts]]


def fresh(size: int) -> memoryview:
    """Return new memory, in large pages where there are: most of the time goes into new pages."""
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # no such pages
        room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a dense tensor on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    flat: Any = tensor.detach().reshape(-1).view(_BYTE).numpy()
    return memoryview(flat)
