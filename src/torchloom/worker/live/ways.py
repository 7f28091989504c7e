"""One state on its way from a member to others of one node, and how the two ends speak of it.

The source offers a way: its own memory, which the targets read, where they may; a file in shared
memory; the group. Each chunk is hashed at both ends, and the hashes come last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from torchloom.errors import Failure
from torchloom.worker.live.cargo import LABEL, Label
from torchloom.worker.live.carrying import hear, tell

_NOTHING = Label(0, 0, 0, 0, 0, 0)
WORDS = 1 + LABEL + 3  # the way, what comes, how much of it is there, whose memory, where in it


class NotTaken(Failure):
    """A state did not come whole; what the member had is untouched, unless it was new."""

    code = "not_taken"


class Way(IntEnum):
    """How a state comes."""

    NONE = 0
    FILE = 1
    GROUP = 2
    MEMORY = 3


@dataclass(frozen=True, slots=True)
class Move:
    """What goes from where to where."""

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
        """Return those to whom it has to be brought."""
        return [target for target in self.targets if target != self.source]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source says first."""

    way: Way
    label: Label = _NOTHING
    ready: int = 0  # chunks that are in the file
    pid: int = 0
    address: int = 0  # of the head

    @property
    def words(self) -> list[int]:
        """Return it as numbers."""
        return [self.way, *self.label.words, self.ready, self.pid, self.address]

    def tell(self, peers: Sequence[int]) -> None:
        """Say it to the targets."""
        tell(peers, self.words)


def heard(source: int) -> Offer:
    """Return what a source offers next."""
    way, *label, ready, pid, address = hear(source, WORDS)
    return Offer(Way(way), Label(*label), ready, pid, address)
