"""Find room for all workers of a job at once, or for none.

On one node where one has room for all, the fullest of those; else on as few as possible. Which GPUs
a share has is part of the decision: the same one is never given twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """How many workers, and what each of them must have."""

    workers: int
    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has, or what of it is free."""

    cpus: int
    memory_mb: int = 0
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """What a job is given of one node."""

    node: str
    workers: int
    cpus: int = 0
    memory_mb: int = 0
    gpus: tuple[str, ...] = ()


Rooms = Mapping[str, Room]


def place(need: Need, free: Rooms) -> tuple[Share, ...] | None:
    """Return a share for every node that is needed; nothing when there is no room for all."""
    fits = {name: count for name, room in free.items() if (count := fit(need, room))}
    if sum(fits.values()) < need.workers:
        return None
    shares, left = [], need.workers
    while left:
        enough = [name for name, count in fits.items() if count >= left]
        names, best = (enough, min) if enough else (list(fits), max)
        name = best(names, key=lambda name: (fits[name], name))
        workers = min(left, fits.pop(name))
        shares.append(_share(need, name, workers, free[name]))
        left -= workers
    return tuple(shares)


def fit(need: Need, room: Room) -> int:
    """Return for how many of the workers there is room on one node."""
    limits = [room.cpus // need.cpus] if need.cpus else [need.workers]
    if need.gpus:
        limits.append(len(room.gpus) // need.gpus)
    if need.memory_mb:
        limits.append(room.memory_mb // need.memory_mb)
    return max(0, min(limits))


def free(rooms: Rooms, shares: Iterable[Share]) -> dict[str, Room]:
    """Return what is left of nodes; shares of nodes that are not there count for nothing."""
    left = dict(rooms)
    for share in shares:
        if share.node in left:
            left[share.node] = _without(left[share.node], share)
    return left


def shortage(need: Need, rooms: Rooms) -> str:
    """Say what nodes lack to ever run this, if nothing else ran; nothing when they could."""
    there = sum(fit(need, room) for room in rooms.values())
    if there >= need.workers:
        return ""
    each = " and ".join(_words(need))
    what = f" with {each} each" if each else ""
    return f"needs {_count(need.workers)}{what}, the cluster has {there if rooms else 'no node'}"


def _share(need: Need, node: str, workers: int, room: Room) -> Share:
    gpus = room.gpus[: workers * need.gpus]
    return Share(node, workers, workers * need.cpus, workers * need.memory_mb, gpus)


def _without(room: Room, share: Share) -> Room:
    gpus = tuple(gpu for gpu in room.gpus if gpu not in share.gpus)
    return Room(room.cpus - share.cpus, room.memory_mb - share.memory_mb, gpus)


def _words(need: Need) -> list[str]:
    words = []
    if need.cpus > 1:
        words.append(f"{need.cpus} CPUs")
    if need.gpus:
        words.append(f"{need.gpus} GPU{'s' * (need.gpus > 1)}")
    if need.memory_mb:
        words.append(f"{need.memory_mb} MB")
    return words


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
