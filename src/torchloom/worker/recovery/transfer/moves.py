"""Move the states of members to others: all members do the same moves in one order.

A state travels in chunks that are hashed at both ends. A target takes all of it into memory of its
own and checks it before anything is handed back, so that one who is interrupted has what it had;
only a newcomer, who has nothing yet, has its own tensors filled.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from torchloom.messages.membership import Given
from torchloom.rules.membership.election import What
from torchloom.worker.recovery.transfer import channels
from torchloom.worker.recovery.transfer.channels import (
    CHUNK,
    State,
    chunks_of,
    hash_of,
    hashes_of,
    receive_numbers,
    send_numbers,
)
from torchloom.worker.recovery.transfer.payload import (
    NotTaken,
    PayloadHead,
    StateMove,
    StatePayload,
    TransferOffer,
    TransferWay,
    receive_offer,
)

_YES, _NO, _DONE = 1, 0, 1
_AT_ONCE = 4  # threads that read
_PART = 1 << 20  # bytes that are hashed while they are near
_MOVED = (What.STATE, What.PRIVATE)
_NAME = re.compile(r"moving-g(\d+)-")


def take(move: StateMove, me: int, own: Sequence[Tensor] = ()) -> tuple[State, int]:
    """Take a state, and return it and its size.

    It comes into memory of its own; but for `own`, the tensors that a newcomer has in the places of
    the first ones that come: those are filled as they are.
    """
    file = move.file(me)
    try:
        offer = receive_offer(move.source)
        while offer.way is TransferWay.MEMORY:
            head = _read_head(offer)
            send_numbers([move.source], [_NO if head is None else _YES])
            if head is not None:
                return _take_by_memory(move, offer, head, own)
            offer = receive_offer(move.source)
    except BaseException:  # the source may have died over its file
        file.unlink(missing_ok=True)
        raise
    if offer.way is TransferWay.NONE:
        raise NotTaken(f"rank {move.source} had no {move.what} to give")
    if offer.way is TransferWay.GROUP:
        return _take_by_group(move, PayloadHead(offer.label), own)
    try:
        with _opened(file) as fd:
            return _take_by_file(move, offer, fd)
    except channels.TransferInterrupted:
        raise NotTaken(f"rank {move.source} could not give all of its {move.what}") from None


def _read_head(offer: TransferOffer) -> PayloadHead | None:
    """Return the head out of the source's memory; None where that may not be read, or is not
    the expected memory."""
    head = PayloadHead(offer.label)
    try:
        channels.read_memory(offer.pid, offer.address, head.view)
    except OSError:
        return None
    return head if head.is_whole() else None


def _take_by_memory(
    move: StateMove, offer: TransferOffer, head: PayloadHead, own: Sequence[Tensor]
) -> tuple[State, int]:
    """Read the source's memory; it waits for our report that we are done."""
    large = head.rooms(own)
    parts = [
        (address + at, view[at : at + CHUNK])
        for address, view in zip(head.addresses, large, strict=True)
        for at in range(0, len(view), CHUNK)
    ]
    trouble = ""
    found: list[int] = []
    try:
        found = channels.at_once(lambda part: _read(offer.pid, *part), parts, _AT_ONCE)
    except OSError as error:  # it has ended, which the group reports; or it has released its memory
        trouble = str(error)
    sent = receive_numbers(move.source, len(parts))
    send_numbers([move.source], [_DONE])
    if trouble:
        raise NotTaken(f"the memory of rank {move.source} cannot be read: {trouble}")
    return _checked(move, head, large, found, sent)


def _read(pid: int, address: int, into: memoryview) -> int:
    """Read a chunk, and return its hash: of each part as long as it is near."""
    digest = channels.Digest()
    for at in range(0, len(into), _PART):
        part = into[at : at + _PART]
        channels.read_memory(pid, address + at, part)
        digest.add(part)
    return digest.value


def _take_by_group(move: StateMove, head: PayloadHead, own: Sequence[Tensor]) -> tuple[State, int]:
    for _ in channels.receive_chunks(chunks_of(head.view), move.source):
        pass
    if not head.is_whole():
        raise NotTaken(f"the head of what rank {move.source} gave is damaged")
    large = head.rooms(own)
    chunks = [chunk for view in large for chunk in chunks_of(view)]
    found = [hash_of(chunks[at]) for at in channels.receive_chunks(chunks, move.source)]
    return _checked(move, head, large, found, _received(move, found))


def _take_by_file(move: StateMove, offer: TransferOffer, fd: int) -> tuple[State, int]:
    """Take a state from a file; the memory of its large tensors stays where it is."""
    head = PayloadHead(offer.label)
    os.preadv(fd, [head.view], 0)
    large: list[memoryview] | None = None
    if head.is_whole():
        with contextlib.suppress(OSError, ValueError):  # no such room, no such file
            large = [channels.mapped(fd, *one, len(move.peers) == 1) for one in head.large()]
    arrivals = channels.arrivals(offer.label.chunks, move.source, offer.ready)
    if large is None:
        _received(move, list(arrivals))  # so that nothing is left for the next move
        raise NotTaken(f"what rank {move.source} gave in {move.stem} cannot be read")
    chunks = [chunk for view in large for chunk in chunks_of(view)]
    found = [hash_of(chunks[at]) for at in arrivals]
    return _checked(move, head, large, found, _received(move, found))


def _received(move: StateMove, found: Sequence[int]) -> list[int]:
    return receive_numbers(move.source, len(found)) if found else []


def _checked(
    move: StateMove,
    head: PayloadHead,
    large: Sequence[memoryview],
    found: Iterable[int],
    sent: Iterable[int],
) -> tuple[State, int]:
    """Return the state if all chunks are what the source has, and its size."""
    same = [one == other for one, other in zip(found, sent, strict=True)]
    if not all(same):
        bad = f"{same.count(False)} of {len(same)} chunks"
        raise NotTaken(f"{bad} that rank {move.source} gave are damaged")
    return head.state(large), len(head.view) + sum(map(len, large))


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[int]:
    """Yield the file, whose name is removed; or one without content."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    file.unlink(missing_ok=True)
    try:
        yield fd
    finally:
        os.close(fd)


def give(move: StateMove, shared: Callable[[], State], private: Callable[[int], State]) -> State:
    """Give a state to the targets; return it."""
    try:
        state = shared() if move.what == What.STATE else private(move.step)
        load = StatePayload(state) if move.peers else None
    except Exception as error:  # such as the program's own state_dict; the targets must not wait
        TransferOffer(TransferWay.NONE).send(move.peers)
        why = f"rank {move.source} has no {move.what} to give: {error}"
        raise NotTaken(why) from error
    if load is not None:
        left = _give_by_memory(move, load)
        if left and not _give_by_file(move, load, left):
            _give_by_group(load, left)
    return state


def _give_by_memory(move: StateMove, load: StatePayload) -> list[int]:
    """Have targets read our memory; return those that may not, and have nothing yet.

    It stays as it is until all of them have said that they are done. What has no large tensors is
    not worth the answers.
    """
    if not (move.is_near and load.chunks and channels.can_be_read()):
        return move.peers
    with channels.readable_memory():
        address = channels.address_of(load.head)
        TransferOffer(TransferWay.MEMORY, load.label, pid=os.getpid(), address=address).send(
            move.peers
        )
        answers = {peer: receive_numbers(peer, 1)[0] for peer in move.peers}
        able = [peer for peer, is_able in answers.items() if is_able]
        if able:
            send_numbers(able, hashes_of(load.chunks))
            for peer in able:
                receive_numbers(peer, 1)
    return [peer for peer in move.peers if peer not in able]


def _give_by_file(move: StateMove, load: StatePayload, peers: Sequence[int]) -> bool:
    """Write a file and leave it to the targets, who remove it; false where there can be none."""
    names = [move.file(peer) for peer in peers]
    fd = _created(names, load.size) if move.is_near else None
    if fd is None:
        return False
    try:
        parts = list(zip(load.places, load.chunks, strict=True))
        channels.write_chunks(
            fd,
            load.head,
            parts,
            peers,
            lambda ready: TransferOffer(TransferWay.FILE, load.label, ready).words,
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


def _give_by_group(load: StatePayload, peers: Sequence[int]) -> None:
    """Send it, and hash it meanwhile."""
    TransferOffer(TransferWay.GROUP, load.label).send(peers)
    with ThreadPoolExecutor(1) as pool:
        hashes = pool.submit(lambda: [hash_of(chunk) for chunk in load.chunks])
        channels.send_chunks([*chunks_of(load.head), *load.chunks], peers)
        if load.chunks:
            send_numbers(peers, hashes.result())


def _created(names: Sequence[Path], size: int) -> int | None:
    """Return a file for a state, under a name for each target; None where there can be none."""
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
    """Return whether a file of this size leaves a tenth of what is free."""
    with contextlib.suppress(OSError):
        there = os.statvfs(folder)
        return there.f_bavail * there.f_frsize * 9 // 10 > size
    return False


__all__ = ["NotTaken", "Taken", "give_and_take"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a member was given, and what that took."""

    shared: State | None = None
    private: State | None = None
    taken: int = 0  # bytes
    seconds: float = 0.0


def give_and_take(
    given: Sequence[Given],
    me: int,
    nodes: Sequence[str],
    folder: Path,
    generation: int,
    shared: Callable[[], State],
    private: Callable[[int], State],
    own: Sequence[Tensor] = (),
) -> Taken:
    """Move what is given; all members come here together, in their new group.

    All members do the moves in one order, so that no two wait for each other.
    `own` are a newcomer's tensors in the places of the first ones of a shared state.
    NotTaken where something came damaged; a member that dies is an error of the group.
    """
    since = time.monotonic()
    _sweep(folder, generation)
    states: dict[str, State] = {}
    troubles: list[str] = []
    taken = 0
    for move in _moves(given, nodes, folder, generation):
        try:
            if me == move.source:
                state = give(move, shared, private)
                states |= {move.what: state} if me in move.targets else {}
            elif me in move.targets:
                room = own if move.what == What.STATE else ()
                states[move.what], size = take(move, me, room)
                taken += size
        except NotTaken as trouble:  # the moves behind it are the others' too
            troubles.append(str(trouble))
    if troubles:
        raise NotTaken("; ".join(troubles))
    seconds = time.monotonic() - since
    return Taken(states.get(What.STATE), states.get(What.PRIVATE), taken, seconds)


def _moves(
    given: Sequence[Given], nodes: Sequence[str], folder: Path, generation: int
) -> list[StateMove]:
    """Return the moves in an order that all members find: a source gives once to each node."""
    targets: dict[tuple[int, str, int, str], list[int]] = {}
    for one in given:
        if one.what in _MOVED and one.source is not None:
            key = one.source, one.what, one.step, nodes[one.target]
            targets.setdefault(key, []).append(one.target)
    moves = []
    for (source, what, step, node), to in targets.items():
        stem = folder / f"moving-g{generation}-{source}-{what}-{step}"
        moves.append(StateMove(source, what, step, tuple(to), nodes[source] == node, stem))
    return moves


def _sweep(folder: Path, generation: int) -> None:
    """Remove files of older generations that no member took."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            found = _NAME.match(path.name)
            if found and int(found[1]) < generation:
                path.unlink(missing_ok=True)
