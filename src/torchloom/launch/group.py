"""Which rank is which: the numbers of a group whose hosts may differ, and some gone."""

from collections.abc import Sequence

from torchloom.launch.request import RoleRequest
from torchloom.specs.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a role in one attempt: those of its members, in order."""

    role: RoleRequest
    members: Sequence[int]

    @property
    def world(self) -> int:
        return sum(self.role.ranks_of(index) for index in self.members)

    def place(self, index: int) -> int:
        """Return a replica's number among those that take part."""
        return list(self.members).index(index)

    def rank(self, index: int, local_rank: int) -> int:
        before = self.members[: self.place(index)]
        return sum(self.role.ranks_of(other) for other in before) + local_rank


def whole_group(role: RoleRequest) -> Group:
    """Return the group that all replicas of a role make up."""
    return Group(role, range(len(role.replicas)))
