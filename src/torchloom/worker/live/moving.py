"""Bring the states of members to others: everybody goes through the same moves in one order.

A state travels in chunks that are hashed at both ends. A target takes all of it into memory of its
own and checks it before anything is handed back, so that one who is interrupted has what it had;
only a newcomer, who has nothing yet, has its own tensors filled.
"""

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from torchloom.bus.regrouping import Given
from torchloom.rules.membership.election import What
from torchloom.worker.live.giving import give
from torchloom.worker.live.packing import State
from torchloom.worker.live.taking import take
from torchloom.worker.live.ways import Move, NotTaken

__all__ = ["NotTaken", "Taken", "give_and_take"]

_MOVED = (What.STATE, What.PRIVATE)
_NAME = re.compile(r"moving-g(\d+)-")


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

    Everybody goes through the moves in one order, so nobody waits for one who waits for it.
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
) -> list[Move]:
    """Return the moves in an order that all members find: a source gives once to each node."""
    targets: dict[tuple[int, str, int, str], list[int]] = {}
    for one in given:
        if one.what in _MOVED and one.source is not None:
            key = one.source, one.what, one.step, nodes[one.target]
            targets.setdefault(key, []).append(one.target)
    moves = []
    for (source, what, step, node), to in targets.items():
        stem = folder / f"moving-g{generation}-{source}-{what}-{step}"
        moves.append(Move(source, what, step, tuple(to), nodes[source] == node, stem))
    return moves


def _sweep(folder: Path, generation: int) -> None:
    """Remove what older generations have left that nobody lived to take."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            found = _NAME.match(path.name)
            if found and int(found[1]) < generation:
                path.unlink(missing_ok=True)
