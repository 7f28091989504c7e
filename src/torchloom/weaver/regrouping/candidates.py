"""Find out when all ranks of an attempt train, and could go on when one of them dies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchloom.bus.regrouping import Lives
from torchloom.rules.election import Holding
from torchloom.rules.escalation import Limits
from torchloom.rules.live import trains
from torchloom.rules.membership import Who
from torchloom.weaver.regrouping.watched import Watched, newest
from torchloom.weaver.store.rows import Rank


@dataclass(slots=True)
class Candidate:
    """The ranks of one generation that have said that they train: their lives and steps."""

    attempt: int
    generation: int
    role: str
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)


class Candidates:
    """Those of which not all have said so, or whose launch process is not there."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._found: dict[str, Candidate] = {}

    def trains(self, rank: Rank, generation: int, step: int) -> None:
        """Note that a rank trains."""
        one = self._found.get(rank.job)
        whose = (rank.attempt, generation, rank.role)
        if one is None or (one.attempt, one.generation, one.role) != whose:
            one = self._found[rank.job] = Candidate(*whose)
        one.ranks[rank.rank] = (rank.life, step)

    def forget(self, job: str) -> None:
        """Have all ranks of a job say it again."""
        self._found.pop(job, None)

    def whole(self, job: str, said: Lives | None) -> Watched | None:
        """Return an attempt to be watched: all its processes are there, and train."""
        one = self._found.get(job)
        if one is None or said is None or said.attempt != one.attempt:
            return None
        lives = newest(said.lives)
        there = {rank: life.life for rank, life in lives.items() if life.code is None}
        is_all = set(there) == set(lives) == set(range(len(lives)))
        if not is_all or {rank: life for rank, (life, _) in one.ranks.items()} != there:
            return None
        start = max(step for _, step in one.ranks.values())
        whos = [Who(rank, life.life, life.node) for rank, life in lives.items()]
        room: Mapping[str, int] = said.room
        state = trains(
            Holding.REPLICATED, whos, room, one.generation, one.attempt, start, self._limits
        )
        return Watched(job, one.attempt, one.role, state)
