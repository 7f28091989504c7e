"""What the launch process tells an agent to start, as values that survive a trip through JSON."""

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import ReplicaKey


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank: its place, where its logs go below the log folder, and what only it is told."""

    local_rank: int
    logs: str
    variables: Mapping[str, str]
    copied: int = 0  # streams that are written a second time: bit 1 stdout, bit 2 stderr


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """All ranks of one replica, on one node, in one attempt; or one of them, in a later life."""

    role: str
    index: int
    attempt: int
    argv: tuple[str, ...]
    cwd: str
    ranks: tuple[RankOrder, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # the role's own: it beats all others
    ports: Mapping[str, int] = field(default_factory=dict)
    grouped: bool = False  # the ranks form a torch.distributed group
    file_store: bool = False  # and meet in a file of their own host
    copies: str = ""  # the folder of this attempt's copied logs, as torchrun lays them out
    generation: int = 0
    life: int = 1

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.role, self.index)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ReplicaOrder":
        ranks = tuple(RankOrder(**rank) for rank in data["ranks"])
        return cls(**{**data, "argv": tuple(data["argv"]), "ranks": ranks})
