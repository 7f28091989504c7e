"""Decide which ranks a failure concerns and what is done about it, job by job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torchloom.rules.devices import DeviceState, DRMap, GroupId, RankId
from torchloom.rules.lifecycle import (
    collective_reason,
    device_reason,
    exit_reason,
    loss_reason,
    node_reason,
)


class LossRecovery(StrEnum):
    """What a job wants when it loses ranks."""

    LIVE = "live"  # the others stay up, and wait for the replica groups that were hit
    RESTART = "restart"  # all ranks start again
    SHRINK = "shrink"  # the others continue without them
    FAIL = "fail"


class OnLoss(StrEnum):
    """What a job wants when its loss is NaN or infinite."""

    NOTIFY = "notify"
    RESTART = "restart"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What a job wants; it shrinks to no fewer than `min_groups` replica groups."""

    recovery: LossRecovery = LossRecovery.RESTART
    on_loss: OnLoss = OnLoss.NOTIFY
    min_groups: int = 1


# What happened.


@dataclass(frozen=True, slots=True)
class RankFailed:
    """The keeper reports that a rank ended: with a code, or by a signal if it is negative."""

    process: RankId
    code: int


@dataclass(frozen=True, slots=True)
class RankGivenUp:
    """A rank still runs but cannot be helped: it is silent, or hangs."""

    process: RankId
    reason: str


@dataclass(frozen=True, slots=True)
class CollectiveFailed:
    """A rank reports that a collective failed; another signal will show the cause."""

    process: RankId
    words: str


@dataclass(frozen=True, slots=True)
class LossNotFinite:
    """A rank's loss is NaN or infinite."""

    process: RankId
    step: int


@dataclass(frozen=True, slots=True)
class DeviceReported:
    """A monitor of devices, or a person, reports the state of one."""

    device: str
    state: DeviceState
    why: str


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node is lost, with all that ran there."""

    node: str


Signal = RankFailed | RankGivenUp | CollectiveFailed | LossNotFinite | DeviceReported | NodeFailed


# What to do about it.


@dataclass(frozen=True, slots=True)
class Mark:
    """Note at a rank what has hit it."""

    process: RankId
    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Notify people; without a job, the plane's administrators."""

    job: str | None
    reason: str
    words: str


@dataclass(frozen=True, slots=True)
class KillRank:
    """Have the agent end a running rank at once."""

    process: RankId
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Have a running rank replaced: live recovery ends it, and only it."""

    process: RankId
    reason: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Have these replica groups save and leave at a step boundary."""

    job: str
    groups: frozenset[GroupId]
    reason: str


@dataclass(frozen=True, slots=True)
class RestartRanks:
    """Have the agents start these ranks again once they are down."""

    job: str
    processes: frozenset[RankId]
    recovery: LossRecovery
    reason: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Have the job continue without these replica groups."""

    job: str
    groups: frozenset[GroupId]
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """End the job."""

    job: str
    reason: str


Effect = Mark | Notify | KillRank | GiveUp | Drain | RestartRanks | Shrink | Fail


@dataclass(frozen=True, slots=True)
class State:
    """All that a response depends on. A job without a policy has the usual one."""

    drmap: DRMap = field(default_factory=DRMap)
    policies: Mapping[str, FailurePolicy] = field(default_factory=dict)
    live: frozenset[str] = frozenset()  # jobs that are recovered live at this moment


Next = tuple[State, tuple[Effect, ...]]


def step(state: State, signal: Signal) -> Next:
    """Handle one signal; return the state after it and what to do, in order."""
    match signal:
        case RankFailed():
            if signal.code == 0:
                return state, ()
            reason = exit_reason(signal.process.rank, signal.code)
            return state, _hit(state, [signal.process], reason, gone={signal.process})
        case RankGivenUp():
            return state, _hit(state, [signal.process], signal.reason)
        case CollectiveFailed():
            reason = collective_reason(signal.process.rank)
            notice = Notify(signal.process.job, reason, signal.words)
            return state, (Mark(signal.process, reason), notice)
        case LossNotFinite():
            return state, _loss(state, signal)
        case DeviceReported():
            return _device(state, signal)
        case NodeFailed():
            here = state.drmap.processes_at(signal.node)
            return state, _hit(state, here, node_reason(signal.node), gone=here)


def _device(state: State, signal: DeviceReported) -> Next:
    """Mark the device; act on the ranks that use it only when its state becomes bad."""
    device, was = signal.device, state.drmap.health_of(signal.device).state
    is_known = state.drmap.knows(device)
    drmap = state.drmap.mark(device, signal.state, signal.why)
    state = replace(state, drmap=drmap)
    if not is_known:
        words = f"Device {device} not found in device-to-replicas map"
        return state, (Notify(None, device_reason(device), words),)
    if was is signal.state:
        return state, ()
    users = drmap.processes_on(device)
    if signal.state is DeviceState.FAILED:
        return state, _hit(state, users, device_reason(device))
    if signal.state is DeviceState.HEALTHY:
        return state, (Notify(None, f"device_recovered_{device}", signal.why),)
    reason = f"device_draining_{device}"
    jobs = sorted({user.job for user in users})
    return state, tuple(Drain(job, _groups(drmap, job, users), reason) for job in jobs)


def _loss(state: State, signal: LossNotFinite) -> tuple[Effect, ...]:
    job, reason = signal.process.job, loss_reason(signal.process.rank)
    notice = Notify(job, reason, f"the loss of rank {signal.process.rank} is not finite")
    effects = (Mark(signal.process, reason), notice)
    everyone = _everyone(state.drmap, job)
    match _policy(state, job).on_loss:
        case OnLoss.NOTIFY:
            return effects
        case OnLoss.RESTART:
            again = RestartRanks(job, everyone, LossRecovery.RESTART, reason)
            return (*effects, *_kills(everyone, reason), again)
        case OnLoss.FAIL:
            return (*effects, *_kills(everyone, reason), Fail(job, reason))


def _hit(
    state: State,
    processes: Iterable[RankId],
    reason: str,
    gone: Iterable[RankId] = (),
) -> tuple[Effect, ...]:
    """Recover every job that loses one of these processes; `gone` need not be killed."""
    hit, dead = frozenset(processes), frozenset(gone)
    effects: tuple[Effect, ...] = tuple(Mark(process, reason) for process in sorted(hit))
    for job in sorted({process.job for process in hit}):
        own = frozenset(process for process in hit if process.job == job)
        effects += _recover(state, job, own, dead, reason)
    return effects


def _recover(
    state: State, job: str, hit: frozenset[RankId], dead: frozenset[RankId], reason: str
) -> tuple[Effect, ...]:
    """A replica group that lost a member is lost as a whole: the copy it held is not complete.

    Where a job is recovered live every rank has a whole copy, and is replaced alone.
    """
    if _policy(state, job).recovery is LossRecovery.LIVE and job in state.live:
        return tuple(GiveUp(process, reason) for process in sorted(hit - dead))
    drmap, everyone = state.drmap, _everyone(state.drmap, job) | hit
    groups = drmap.groups_of(hit)
    members = drmap.members(*groups) | hit
    recovery = _possible(_policy(state, job), drmap, everyone - members)
    kills = _kills((everyone if recovery is LossRecovery.FAIL else members) - dead, reason)
    match recovery:
        case LossRecovery.RESTART:  # the restart ends the others, within their grace period
            return (*kills, RestartRanks(job, everyone, recovery, reason))
        case LossRecovery.SHRINK:
            return (*kills, Shrink(job, groups, reason))
        case LossRecovery.FAIL:
            return (*kills, Fail(job, reason))
        case _:
            return (*kills, RestartRanks(job, members, recovery, reason))


def _possible(policy: FailurePolicy, drmap: DRMap, left: frozenset[RankId]) -> LossRecovery:
    """Return what the job wants, or the next best where no rank is left for it."""
    if policy.recovery is LossRecovery.LIVE and not left:
        return LossRecovery.RESTART
    least = max(1, policy.min_groups)
    if policy.recovery is LossRecovery.SHRINK and len(drmap.groups_of(left)) < least:
        return LossRecovery.FAIL
    return policy.recovery


def _policy(state: State, job: str) -> FailurePolicy:
    return state.policies.get(job, FailurePolicy())


def _everyone(drmap: DRMap, job: str) -> frozenset[RankId]:
    return frozenset(process for process in drmap.processes if process.job == job)


def _groups(drmap: DRMap, job: str, processes: Iterable[RankId]) -> frozenset[GroupId]:
    return drmap.groups_of(process for process in processes if process.job == job)


def _kills(processes: Iterable[RankId], reason: str) -> tuple[Effect, ...]:
    return tuple(KillRank(process, reason) for process in sorted(processes))
