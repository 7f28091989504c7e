"""A target of a state: it takes the bytes, checks all of them, and only then has a state."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from torchloom.worker.live import carrying, memory
from torchloom.worker.live.cargo import Head
from torchloom.worker.live.carrying import CHUNK, chunks_of, hash_of, hear, tell
from torchloom.worker.live.packing import State
from torchloom.worker.live.ways import Move, NotTaken, Offer, Way, heard

_YES, _NO, _DONE = 1, 0, 1
_AT_ONCE = 4  # threads that read
_PART = 1 << 20  # bytes that are hashed while they are near


def take(move: Move, me: int, own: Sequence[Tensor] = ()) -> tuple[State, int]:
    """Take a state, and return it and its size.

    It comes into memory of its own; but for `own`, the tensors that a newcomer has in the places of
    the first ones that come: those are filled as they are.
    """
    file = move.file(me)
    try:
        offer = heard(move.source)
        while offer.way is Way.MEMORY:
            head = _read_head(offer)
            tell([move.source], [_NO if head is None else _YES])
            if head is not None:
                return _by_memory(move, offer, head, own)
            offer = heard(move.source)
    except BaseException:  # the source may have died over its file
        file.unlink(missing_ok=True)
        raise
    if offer.way is Way.NONE:
        raise NotTaken(f"rank {move.source} had no {move.what} to give")
    if offer.way is Way.GROUP:
        return _by_group(move, Head(offer.label), own)
    try:
        with _opened(file) as fd:
            return _by_file(move, offer, fd)
    except carrying.Interrupted:
        raise NotTaken(f"rank {move.source} could not give all of its {move.what}") from None


def _read_head(offer: Offer) -> Head | None:
    """Return the head out of the source's memory; nothing where that may not be read, or is not
    the memory that was meant."""
    head = Head(offer.label)
    try:
        memory.read(offer.pid, offer.address, head.view)
    except OSError:
        return None
    return head if head.is_whole() else None


def _by_memory(move: Move, offer: Offer, head: Head, own: Sequence[Tensor]) -> tuple[State, int]:
    """Read what the source has in its memory; it waits for our word that we are done."""
    large = head.rooms(own)
    parts = [
        (address + at, view[at : at + CHUNK])
        for address, view in zip(head.addresses, large, strict=True)
        for at in range(0, len(view), CHUNK)
    ]
    trouble = ""
    found: list[int] = []
    try:
        found = carrying.at_once(lambda part: _read(offer.pid, *part), parts, _AT_ONCE)
    except OSError as error:  # it is gone, then the group says so; or it has let go of its memory
        trouble = str(error)
    told = hear(move.source, len(parts))
    tell([move.source], [_DONE])
    if trouble:
        raise NotTaken(f"the memory of rank {move.source} cannot be read: {trouble}")
    return _checked(move, head, large, found, told)


def _read(pid: int, address: int, into: memoryview) -> int:
    """Read a chunk, and return its hash: of each part as long as it is near."""
    digest = carrying.Digest()
    for at in range(0, len(into), _PART):
        part = into[at : at + _PART]
        memory.read(pid, address + at, part)
        digest.add(part)
    return digest.value


def _by_group(move: Move, head: Head, own: Sequence[Tensor]) -> tuple[State, int]:
    for _ in carrying.receive(chunks_of(head.view), move.source):
        pass
    if not head.is_whole():
        raise NotTaken(f"the head of what rank {move.source} gave is damaged")
    large = head.rooms(own)
    chunks = [chunk for view in large for chunk in chunks_of(view)]
    found = [hash_of(chunks[at]) for at in carrying.receive(chunks, move.source)]
    return _checked(move, head, large, found, _told(move, found))


def _by_file(move: Move, offer: Offer, fd: int) -> tuple[State, int]:
    """Take a state from a file; the memory of its large tensors stays where it is."""
    head = Head(offer.label)
    os.preadv(fd, [head.view], 0)
    large: list[memoryview] | None = None
    if head.is_whole():
        with contextlib.suppress(OSError, ValueError):  # no such room, no such file
            large = [carrying.mapped(fd, *one, len(move.peers) == 1) for one in head.large()]
    arrivals = carrying.arrivals(offer.label.chunks, move.source, offer.ready)
    if large is None:
        _told(move, list(arrivals))  # so that nothing is taken for a word of the next move
        raise NotTaken(f"what rank {move.source} gave in {move.stem} cannot be read")
    chunks = [chunk for view in large for chunk in chunks_of(view)]
    found = [hash_of(chunks[at]) for at in arrivals]
    return _checked(move, head, large, found, _told(move, found))


def _told(move: Move, found: Sequence[int]) -> list[int]:
    return hear(move.source, len(found)) if found else []


def _checked(
    move: Move, head: Head, large: Sequence[memoryview], found: Iterable[int], told: Iterable[int]
) -> tuple[State, int]:
    """Return the state if all chunks are what the source has, and its size."""
    same = [one == other for one, other in zip(found, told, strict=True)]
    if not all(same):
        bad = f"{same.count(False)} of {len(same)} chunks"
        raise NotTaken(f"{bad} that rank {move.source} gave are damaged")
    return head.state(large), len(head.view) + sum(map(len, large))


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[int]:
    """Give the file, which nobody needs by its name then; or one without content."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    file.unlink(missing_ok=True)
    try:
        yield fd
    finally:
        os.close(fd)
