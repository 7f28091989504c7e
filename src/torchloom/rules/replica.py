"""The name of one copy of a role: what decisions and orders are about."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """Which copy of which role."""

    role: str
    index: int
