"""Bring the state of one member to others: through shared memory on one node, else by the group.

A state travels in chunks that are hashed. A target takes all of it into memory of its own and
checks it before anything is handed back, so that one who is interrupted has what it had.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchloom.bus.regrouping import Given
from torchloom.errors import Failure
from torchloom.rules.election import What
from torchloom.worker.live import carrying
from torchloom.worker.live.cargo import LABEL, Head, Label, Load
from torchloom.worker.live.carrying import chunks_of, hash_of, hear, tell
from torchloom.worker.live.packing import State

_MOVED = (What.STATE, What.PRIVATE)
_NAME = re.compile(r"moving-g(\d+)-")
_NO_WAY, _BY_FILE, _BY_GROUP = range(3)
_WORDS = 1 + LABEL + 1  # the way, what comes, and how much of it is in the file


class NotTaken(Failure):
    """A state did not come whole; what the member had is untouched."""

    code = "not_taken"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a member was given, and what that took."""

    shared: State | None = None
    private: State | None = None
    taken: int = 0  # bytes
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Move:
    """One state on its way from a member to some others of one node."""

    source: int
    what: str
    step: int
    targets: tuple[int, ...]
    is_near: bool  # they share memory
    stem: Path

    def file(self, target: int) -> Path:
        """Return the name under which a target finds the file, and removes it."""
        return self.stem.with_name(f"{self.stem.name}-{target}")

    @property
    def peers(self) -> list[int]:
        return [target for target in self.targets if target != self.source]


def give_and_take(
    given: Sequence[Given],
    me: int,
    nodes: Sequence[str],
    folder: Path,
    generation: int,
    shared: Callable[[], State],
    private: Callable[[int], State],
) -> Taken:
    """Move what is given; all members come here together, in their new group.

    Everybody goes through the moves in one order, so nobody waits for one who waits for it.
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
                state = _give(move, shared, private)
                states |= {move.what: state} if me in move.targets else {}
            elif me in move.targets:
                states[move.what], size = _take(move, me)
                taken += size
        except NotTaken as trouble:  # the moves behind it are the others' too
            troubles.append(str(trouble))
    if troubles:
        raise NotTaken("; ".join(troubles))
    seconds = time.monotonic() - since
    return Taken(states.get(What.STATE), states.get(What.PRIVATE), taken, seconds)


def _moves(
    given: Sequence[Given], nodes: Sequence[str], folder: Path, generation: int
) -> list[_Move]:
    """Return the moves in an order that all members find: a source gives once to each node."""
    targets: dict[tuple[int, str, int, str], list[int]] = {}
    for one in given:
        if one.what in _MOVED and one.source is not None:
            key = one.source, one.what, one.step, nodes[one.target]
            targets.setdefault(key, []).append(one.target)
    moves = []
    for (source, what, step, node), to in targets.items():
        stem = folder / f"moving-g{generation}-{source}-{what}-{step}"
        moves.append(_Move(source, what, step, tuple(to), nodes[source] == node, stem))
    return moves


def _sweep(folder: Path, generation: int) -> None:
    """Remove what older generations have left that nobody lived to take."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            found = _NAME.match(path.name)
            if found and int(found[1]) < generation:
                path.unlink(missing_ok=True)


# The source.


def _give(move: _Move, shared: Callable[[], State], private: Callable[[int], State]) -> State:
    """Give a state to the targets; return it."""
    try:
        state = shared() if move.what == What.STATE else private(move.step)
        load = Load(state) if move.peers else None
    except Exception as error:  # the program's own state_dict, say; the targets must not wait
        tell(move.peers, [_NO_WAY] * _WORDS)
        why = f"rank {move.source} has no {move.what} to give: {error}"
        raise NotTaken(why) from error
    if load is None:
        return state
    fd = _created(move, load.size)
    if fd is not None:
        _give_by_file(move, load, fd)
    else:
        tell(move.peers, [_BY_GROUP, *load.label.words, 0])
        carrying.send([*chunks_of(load.head), *load.chunks], move.peers)
    return state


def _created(move: _Move, size: int) -> int | None:
    """Return a file for a state, under a name for each target; nothing where there can be none."""
    names = [move.file(peer) for peer in move.peers]
    if not move.is_near or not _has_room(move.stem.parent, size):
        return None
    try:
        for name in names:
            name.unlink(missing_ok=True)
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


def _give_by_file(move: _Move, load: Load, fd: int) -> None:
    """Write the file and leave it to the targets, who remove it."""
    names = [move.file(peer) for peer in move.peers]
    try:
        parts = list(zip(load.places, load.chunks, strict=True))
        carrying.write(fd, load.head, parts, move.peers, [_BY_FILE, *load.label.words])
    except OSError as error:
        _remove(names)
        raise NotTaken(f"{names[0].parent} has no room for a state: {error}") from error
    except BaseException:  # a target is dead, and cannot remove it
        _remove(names)
        raise
    finally:
        os.close(fd)


def _remove(names: Iterable[Path]) -> None:
    for name in names:
        name.unlink(missing_ok=True)


def _has_room(folder: Path, size: int) -> bool:
    """Tell whether a file of this size leaves a tenth of what is free."""
    try:
        there = os.statvfs(folder)
    except OSError:
        return False
    return there.f_bavail * there.f_frsize * 9 // 10 > size


# A target.


def _take(move: _Move, me: int) -> tuple[State, int]:
    """Take a state into memory of its own; return it and its size."""
    file = move.file(me)
    try:
        way, *words, ready = hear(move.source, _WORDS)
    except BaseException:  # the source may have died over its file
        file.unlink(missing_ok=True)
        raise
    if way == _NO_WAY:
        raise NotTaken(f"rank {move.source} had no {move.what} to give")
    head = Head(Label(*words))
    try:
        if way == _BY_GROUP:
            return _by_group(move, head)
        with _opened(file) as fd:
            return _by_file(move, head, fd, carrying.arrivals(words[0], move.source, ready))
    except carrying.Interrupted:
        raise NotTaken(f"rank {move.source} could not give all of its {move.what}") from None


def _by_group(move: _Move, head: Head) -> tuple[State, int]:
    for _ in carrying.receive(chunks_of(head.view), move.source):
        pass
    if not head.is_whole():
        raise NotTaken(f"the head of what rank {move.source} gave is damaged")
    large = [memoryview(bytearray(size)) for _, size in head.large()]
    chunks = [chunk for view in large for chunk in chunks_of(view)]
    return _checked(move, head, large, carrying.receive(chunks, move.source))


def _by_file(move: _Move, head: Head, fd: int, arrivals: Iterator[int]) -> tuple[State, int]:
    """Take a state from a file; the memory of its large tensors stays where it is."""
    os.preadv(fd, [head.view], 0)
    large: list[memoryview] | None = None
    if head.is_whole():
        with contextlib.suppress(OSError, ValueError):  # no such room, no such file
            large = [carrying.mapped(fd, *one, len(move.peers) == 1) for one in head.large()]
    if large is None:
        list(arrivals)  # so that none is taken for one of the next move
        raise NotTaken(f"what rank {move.source} gave in {move.stem} cannot be read")
    return _checked(move, head, large, arrivals)


def _checked(
    move: _Move, head: Head, large: Sequence[memoryview], arrivals: Iterator[int]
) -> tuple[State, int]:
    """Return the state when all chunks have come, and its size."""
    chunks = [chunk for view in large for chunk in chunks_of(view)]
    bad = sum(hash_of(chunks[at]) != head.hashes[at] for at in arrivals)
    if bad:
        raise NotTaken(f"{bad} of {len(chunks)} chunks that rank {move.source} gave are damaged")
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
