"""Decide from a rank's progress that it hangs: take stacks early, act late, and on proof only.

Progress is a counter that the training thread advances and the agent reads. Its age is measured by
that agent's clock, so no pause of another process makes it look older. A rank whose counter never
advanced has no known boundary: nothing is concluded about it. Only the keeper reports a death.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from torchloom.rules.lifecycle import hang_reason, heartbeat_reason

WINDOW = 9  # step times that a rank's median is taken of
PHASES = 64  # names of phases that a job may have; more are not learned


@dataclass(frozen=True, slots=True)
class HangLimits:
    """When to take stacks, and when to act."""

    suspect_steps: float = 3.0
    suspect_floor: float = 1.0
    factor: float = 5.0  # of the longest standstill that a phase was seen to come out of
    unlearned: float = 60.0  # until the phase was seen to end once
    least: float = 10.0  # no learned limit is shorter
    fixed: float | None = None  # what the job wants instead of all that
    kills: bool = True  # for attached scripts the user is only notified


@dataclass(frozen=True, slots=True)
class RankProgress:
    """What an agent reads of a rank: without a step there was no boundary yet."""

    step: int | None
    phase: str = "step"
    age: float = 0.0  # since it last advanced


@dataclass(frozen=True, slots=True)
class WatchedRank:
    """What is known of one rank's process."""

    step: int | None = None
    phase: str = "step"
    age: float = 0.0
    at: float = 0.0  # of its agent's clock
    times: tuple[float, ...] = ()
    is_suspect: bool = False
    is_silent: bool = False  # its threadlet sends nothing


@dataclass(frozen=True, slots=True)
class StackFinding:
    """What the stacks show: which rank blocks the others, and a fingerprint of its stack."""

    culprit: int | None
    stack: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """The living ranks of a job, and how long its phases take."""

    limits: HangLimits = field(default_factory=HangLimits)
    ranks: Mapping[int, WatchedRank] = field(default_factory=dict)
    longest: Mapping[str, float] = field(default_factory=dict)  # by phase
    finding: StackFinding | None = None
    is_looking: bool = False  # stacks are being taken
    look_at: float = 0.0  # the age at which stacks of a culprit are taken again
    given_up: frozenset[int] = frozenset()

    def suspect_after(self, rank: int) -> float:
        """Return how long a rank may stand still before its stack is taken."""
        times = self.ranks[rank].times
        return max(self.limits.suspect_steps * median(times or (0.0,)), self.limits.suspect_floor)

    def give_up_after(self, rank: int) -> float:
        """Return how long a rank may stand still in its phase before it is given up."""
        limits, longest = self.limits, self.longest.get(self.ranks[rank].phase)
        if limits.fixed is not None:
            return max(limits.fixed, self.suspect_after(rank))
        if longest is None:
            return max(limits.unlearned, self.suspect_after(rank))
        return max(limits.factor * longest, limits.least, self.suspect_after(rank))


# What happened.


@dataclass(frozen=True, slots=True)
class RankStarted:
    """A rank has a new process."""

    rank: int


@dataclass(frozen=True, slots=True)
class RankEnded:
    """The keeper reports that a rank's process has ended."""

    rank: int


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What one agent read of its ranks, all at one time of its monotonic clock."""

    now: float
    ranks: Mapping[int, RankProgress]


@dataclass(frozen=True, slots=True)
class ThreadletState:
    """Whether a rank's threadlet sends; if it does not, its process may still train."""

    rank: int
    is_silent: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """The verdict on the stacks that were requested."""

    finding: StackFinding


Event = RankStarted | RankEnded | ProgressReport | ThreadletState | Looked


# What to do about it.


@dataclass(frozen=True, slots=True)
class Suspect:
    """Mark a rank as suspect; nothing is done to it."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """A rank moves again."""

    rank: int


@dataclass(frozen=True, slots=True)
class RequestStacks:
    """Take the stacks of these ranks and judge them."""

    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class EndHungRank:
    """End this rank: it has not moved, and blocks the others."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class NotifyHang:
    """Notify people of what would have been done."""

    rank: int
    reason: str


Effect = Suspect | Cleared | RequestStacks | EndHungRank | NotifyHang
Next = tuple[State, tuple[Effect, ...]]


def step(state: State, event: Event) -> Next:
    """Handle one event; return the new state and what to do, in order."""
    match event:
        case RankStarted():
            return _fresh(
                replace(state, ranks={**state.ranks, event.rank: WatchedRank()}), event.rank
            )
        case RankEnded():
            left = {rank: was for rank, was in state.ranks.items() if rank != event.rank}
            return _fresh(replace(state, ranks=left), event.rank)
        case ProgressReport():
            return _report(state, event)
        case ThreadletState() if event.rank in state.ranks:
            return _threadlet_changed(state, event)
        case Looked():
            return _looked(state, event.finding)
    return state, ()


def _fresh(state: State, rank: int) -> Next:
    """Drop the finding: a process began or ended, and that affects the others."""
    given_up = state.given_up - {rank}
    state = replace(state, finding=None, is_looking=False, look_at=0.0, given_up=given_up)
    return state, ()


def _report(state: State, report: ProgressReport) -> Next:
    known = {rank: seen for rank, seen in report.ranks.items() if rank in state.ranks}
    ranks, longest = dict(state.ranks), dict(state.longest)
    moved: list[int] = []
    for rank, seen in known.items():
        old = ranks[rank]
        has_moved = (old.step, old.phase) != (seen.step, seen.phase)
        if has_moved and old.step is not None:
            _learn(longest, old, seen, report.now)
            moved.append(rank)
        ranks[rank] = _after(old, seen, report.now, has_moved)
    cleared = [r for r in moved if state.ranks[r].is_suspect and not ranks[r].is_suspect]
    effects: tuple[Effect, ...] = tuple(map(Cleared, cleared))
    state = replace(state, ranks=ranks, longest=longest)
    if state.finding and state.finding.culprit in moved:
        state = replace(state, finding=None, look_at=0.0)
    state, more = _judge(state, known)
    return state, (*effects, *more)


def _learn(longest: dict[str, float], old: WatchedRank, seen: RankProgress, now: float) -> None:
    """Remember the standstill that just ended, under the phase in which it was spent."""
    if old.phase in longest or len(longest) < PHASES:
        is_next = seen.step is not None and seen.step - (old.step or 0) <= 1
        stood = max(old.age, (now - seen.age) - (old.at - old.age)) if is_next else old.age
        longest[old.phase] = max(longest.get(old.phase, 0.0), stood)


def _after(old: WatchedRank, seen: RankProgress, now: float, has_moved: bool) -> WatchedRank:
    times = old.times
    if old.step is not None and seen.step is not None and seen.step > old.step:
        took = ((now - seen.age) - (old.at - old.age)) / (seen.step - old.step)
        times = (*times, max(0.0, took))[-WINDOW:]
    is_suspect = old.is_suspect and (old.is_silent or not has_moved)
    return WatchedRank(seen.step, seen.phase, seen.age, now, times, is_suspect, old.is_silent)


def _threadlet_changed(state: State, event: ThreadletState) -> Next:
    """A silent threadlet makes its rank suspect, and no more than that."""
    was = state.ranks[event.rank]
    if was.is_silent == event.is_silent:
        return state, ()
    is_suspect = event.is_silent or _stands(state, event.rank)
    now = replace(was, is_silent=event.is_silent, is_suspect=is_suspect)
    state = replace(state, ranks={**state.ranks, event.rank: now})
    if was.is_suspect == now.is_suspect:
        return state, ()
    if not now.is_suspect:
        return state, (Cleared(event.rank),)
    return _look(state, (Suspect(event.rank, "its threadlet is silent"),))


def _judge(state: State, reported: Mapping[int, RankProgress]) -> Next:
    """Find ranks that stand still for longer than usual, or than they may."""
    effects: tuple[Effect, ...] = ()
    for rank in sorted(reported):
        seen, limit = state.ranks[rank], state.suspect_after(rank)
        if seen.is_suspect or not _stands(state, rank):
            continue
        why = f"no progress for {seen.age:.1f} s in {seen.phase}, usually under {limit:.1f} s"
        state = replace(state, ranks={**state.ranks, rank: replace(seen, is_suspect=True)})
        effects += (Suspect(rank, why),)
    is_unexplained = state.finding is None and any(_stands(state, rank) for rank in reported)
    if effects or is_unexplained or _is_due(state):
        return _look(state, effects)
    return state, ()


def _stands(state: State, rank: int) -> bool:
    seen = state.ranks[rank]
    return seen.step is not None and seen.age > state.suspect_after(rank)


def _is_due(state: State) -> bool:
    """Return whether the rank that was found to block the others has used up its time.

    Without such a rank all are checked: one that worked when stacks were taken may stand by now.
    """
    if state.finding is None:
        return False
    culprit = state.finding.culprit
    asked = state.ranks.keys() if culprit is None else {culprit} & state.ranks.keys()
    return any(
        (seen := state.ranks[rank]).step is not None
        and seen.age >= max(state.give_up_after(rank), state.look_at)
        for rank in asked - state.given_up
    )


def _look(state: State, effects: tuple[Effect, ...]) -> Next:
    if state.is_looking:
        return state, effects
    return replace(state, is_looking=True), (*effects, RequestStacks(frozenset(state.ranks)))


def _look_at(state: State, culprit: int | None) -> float:
    """Return the age from which on stacks are taken again."""
    if culprit is not None:
        return state.ranks[culprit].age + state.suspect_after(culprit)
    standing = [rank for rank in state.ranks if _stands(state, rank)]
    return max((state.ranks[r].age + state.give_up_after(r) / 2 for r in standing), default=0.0)


def _looked(state: State, finding: StackFinding) -> Next:
    """Compare with what was found before: only one that has not moved since is given up."""
    if not state.is_looking:
        return state, ()  # requested before a rank started or ended
    same = state.finding is not None and finding.culprit == state.finding.culprit
    has_stood = same and state.finding is not None and finding.stack == state.finding.stack
    is_due = _is_due(state)
    culprit = finding.culprit if finding.culprit in state.ranks else None
    look_at = _look_at(state, culprit)
    state = replace(state, is_looking=False, finding=finding, look_at=look_at)
    if culprit is None or not (has_stood and is_due):
        return state, ()
    state = replace(state, given_up=state.given_up | {culprit})
    is_silent = state.ranks[culprit].is_silent
    reason = heartbeat_reason(culprit) if is_silent else hang_reason(culprit)
    if not state.limits.kills:
        return state, (NotifyHang(culprit, reason),)
    return state, (EndHungRank(culprit, reason),)
