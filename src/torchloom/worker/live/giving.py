"""The source of a state: it offers a way, has the targets take it, and says what they must have."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchloom.rules.membership.election import What
from torchloom.worker.live import carrying, memory
from torchloom.worker.live.cargo import Load
from torchloom.worker.live.carrying import chunks_of, hash_of, hashes_of, hear, tell
from torchloom.worker.live.packing import State
from torchloom.worker.live.ways import Move, NotTaken, Offer, Way


def give(move: Move, shared: Callable[[], State], private: Callable[[int], State]) -> State:
    """Give a state to the targets; return it."""
    try:
        state = shared() if move.what == What.STATE else private(move.step)
        load = Load(state) if move.peers else None
    except Exception as error:  # the program's own state_dict, say; the targets must not wait
        Offer(Way.NONE).tell(move.peers)
        why = f"rank {move.source} has no {move.what} to give: {error}"
        raise NotTaken(why) from error
    if load is not None:
        left = _by_memory(move, load)
        if left and not _by_file(move, load, left):
            _by_group(load, left)
    return state


def _by_memory(move: Move, load: Load) -> list[int]:
    """Have targets read our memory; return those that may not, and have nothing yet.

    It stays as it is until all of them have said that they are done. What has no large tensors is
    not worth the answers.
    """
    if not (move.is_near and load.chunks and memory.can_be_read()):
        return move.peers
    with memory.readable():
        address = memory.address_of(load.head)
        Offer(Way.MEMORY, load.label, pid=os.getpid(), address=address).tell(move.peers)
        answers = {peer: hear(peer, 1)[0] for peer in move.peers}
        able = [peer for peer, is_able in answers.items() if is_able]
        if able:
            tell(able, hashes_of(load.chunks))
            for peer in able:
                hear(peer, 1)
    return [peer for peer in move.peers if peer not in able]


def _by_file(move: Move, load: Load, peers: Sequence[int]) -> bool:
    """Write a file and leave it to the targets, who remove it; false where there can be none."""
    names = [move.file(peer) for peer in peers]
    fd = _created(names, load.size) if move.is_near else None
    if fd is None:
        return False
    try:
        parts = list(zip(load.places, load.chunks, strict=True))
        carrying.write(
            fd, load.head, parts, peers, lambda ready: Offer(Way.FILE, load.label, ready).words
        )
    except OSError as error:
        _remove(names)
        raise NotTaken(f"{names[0].parent} has no room for a state: {error}") from error
    except BaseException:  # a target is dead, and cannot remove it
        _remove(names)
        raise
    finally:
        os.close(fd)
    return True


def _by_group(load: Load, peers: Sequence[int]) -> None:
    """Send it, and hash it meanwhile."""
    Offer(Way.GROUP, load.label).tell(peers)
    with ThreadPoolExecutor(1) as pool:
        hashes = pool.submit(lambda: [hash_of(chunk) for chunk in load.chunks])
        carrying.send([*chunks_of(load.head), *load.chunks], peers)
        if load.chunks:
            tell(peers, hashes.result())


def _created(names: Sequence[Path], size: int) -> int | None:
    """Return a file for a state, under a name for each target; nothing where there can be none."""
    if not _has_room(names[0].parent, size):
        return None
    try:
        _remove(names)
        fd = os.open(names[0], os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        os.ftruncate(fd, size)  # a target may map more than is written yet
        for name in names[1:]:
            os.link(names[0], name)
    except OSError:
        os.close(fd)
        _remove(names)
        return None
    return fd


def _remove(names: Iterable[Path]) -> None:
    for name in names:
        name.unlink(missing_ok=True)


def _has_room(folder: Path, size: int) -> bool:
    """Tell whether a file of this size leaves a tenth of what is free."""
    with contextlib.suppress(OSError):
        there = os.statvfs(folder)
        return there.f_bavail * there.f_frsize * 9 // 10 > size
    return False
