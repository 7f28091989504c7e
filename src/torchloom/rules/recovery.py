"""Decide what follows when a rank ends: continue, retry, or end the app.

A replica is up while any of its ranks is. A rank that fails takes its replica down; the role's
policy decides which replicas restart with it, how often and how soon. Attempts that get no further
than those before them are a crash loop, which ends the app. A lost node takes its replicas down
too; they continue on a spare node, or the group continues without them. The code that executes the
effects decides nothing: it starts, stops, waits and reports exits.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torchloom.rules.replicas import (
    AppVerdict,
    Begin,
    Cancelled,
    Effect,
    Event,
    Finish,
    Idle,
    Leaving,
    LiveEnded,
    NodeLost,
    ProgressMark,
    RankExited,
    Reached,
    Replace,
    Replica,
    ReplicaPhase,
    RestartHistory,
    RoleRule,
    Scope,
    Start,
    StartFailed,
    State,
    Stop,
    Wait,
    WaitOver,
)
from torchloom.specs.api import AppState, RetryPolicy
from torchloom.specs.states import ReplicaKey

CRASH_LOOP = "crash_loop_"  # before the cause: no attempt came further than one before
LONGEST_BACKOFF = 300.0  # seconds


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Handle one event; return the new state and what to do, in order."""
    if state.finished:
        return state, ()
    match event:
        case Begin():
            begun = replace(state, begun=True)
            return _start(begun, [key for key in state.replicas if key not in state.dropped])
        case RankExited():
            return _exited(state, event)
        case StartFailed():
            down = replace(state.replicas[event.key], phase=ReplicaPhase.FAILED, alive=frozenset())
            return _end(_put(state, event.key, down), AppVerdict(AppState.FAILED, event.cause))
        case NodeLost():
            return _node_lost(state, event)
        case Idle() | LiveEnded():
            up = [
                key for key, replica in state.replicas.items() if replica.phase is ReplicaPhase.UP
            ]
            return _failed(state, min(up), event.cause) if up else (state, ())
        case Cancelled():
            return _end(state, AppVerdict(event.state, event.reason))
        case Leaving():
            verdict = state.verdict or AppVerdict(event.state, event.reason)
            return _settle(replace(state, verdict=verdict, restarting={}, resting={}))
        case Reached():
            return _reached(state, event), ()
        case WaitOver():
            group = state.resting.get(event.number, frozenset())
            resting = {n: keys for n, keys in state.resting.items() if n != event.number}
            return _start(replace(state, resting=resting), group, again=True)


def _exited(state: State, event: RankExited) -> tuple[State, tuple[Effect, ...]]:
    replica = state.replicas[event.key]
    alive = replica.alive - {event.rank}
    state = _put(state, event.key, replace(replica, alive=alive))
    if replica.phase is ReplicaPhase.UP and not event.ok:
        return _failed(state, event.key, event.cause)
    if alive:
        return state, ()
    if replica.phase is ReplicaPhase.UP:
        state = _put(state, event.key, replace(replica, alive=alive, phase=ReplicaPhase.SUCCEEDED))
    elif replica.phase is ReplicaPhase.STOPPING:
        state = _put(state, event.key, replace(replica, alive=alive, phase=ReplicaPhase.DOWN))
    return _settle(state)


def _failed(state: State, key: ReplicaKey, cause: str) -> tuple[State, tuple[Effect, ...]]:
    """A rank failed in a replica that should be up: retry, carry on with fewer, or end."""
    if state.verdict is not None:
        return _end(state, state.verdict)
    rule = state.roles[key.role]
    scope = _scope(rule.policy, key)
    used = state.retries.get(scope, 0)
    state, is_looping = _judged(state, scope, rule.crash_loop)
    if used < rule.max_retries and not is_looping:
        state = replace(state, retries={**state.retries, scope: used + 1})
        delay = min(rule.backoff * 2.0 ** min(used, 64), LONGEST_BACKOFF)
        return _restart(state, frozenset(_members(state, rule.policy, key)), delay)
    cause = f"{CRASH_LOOP}{cause}" if is_looping else cause
    state, stops = _stop(state, [key], ReplicaPhase.FAILED)
    if _enough_left(state, rule):
        state, after = _settle(state)
        return state, stops + after
    state, after = _end(state, AppVerdict(AppState.FAILED, cause))
    return state, stops + after


def _reached(state: State, event: Reached) -> State:
    scope = _scope(state.roles[event.key.role].policy, event.key)
    before = state.reached.get(scope, ProgressMark())
    return replace(state, reached={**state.reached, scope: event.point.furthest(before)})


def _judged(state: State, scope: Scope, limit: int) -> tuple[State, bool]:
    """Note how far the attempt came that has just failed; return whether that is a crash loop."""
    lives = state.lives.get(scope, RestartHistory()).then(state.reached.get(scope, ProgressMark()))
    reached = {name: point for name, point in state.reached.items() if name != scope}
    state = replace(state, lives={**state.lives, scope: lives}, reached=reached)
    return state, 0 < limit <= lives.stuck


def _node_lost(state: State, event: NodeLost) -> tuple[State, tuple[Effect, ...]]:
    """Take down what ran on the node; place it elsewhere, or continue without it, or end."""
    spares = tuple(node for node in state.spares if node != event.node)
    state = replace(state, spares=spares, lost={**state.lost, event.node: event.evidence})
    here = state.members_on(event.node)
    failed = [key for key in here if state.replicas[key].phase is ReplicaPhase.UP]
    needed = [key for key in here if _is_needed(state.replicas[key])]
    for key in here:  # some are being stopped already
        phase = ReplicaPhase.DOWN if key in needed else state.replicas[key].phase
        state = _put(state, key, replace(state.replicas[key], alive=frozenset(), phase=phase))
    if state.verdict is not None:
        return _settle(state)
    verdict = AppVerdict(AppState.FAILED, f"node_lost_{event.node}")
    rule = state.roles[failed[0].role] if failed else None
    if rule and state.retries.get(_scope(rule.policy, failed[0]), 0) >= rule.max_retries:
        return _end(state, verdict)
    seated = _seat(state, needed)
    if seated is None:
        return _end(state, verdict)
    state, moves = seated
    if not state.begun:
        return state, moves
    state, after = _failed(state, failed[0], verdict.reason) if failed else _settle(state)
    return state, moves + after


def _is_needed(replica: Replica) -> bool:
    return replica.phase not in (ReplicaPhase.SUCCEEDED, ReplicaPhase.FAILED)


def _seat(state: State, keys: Iterable[ReplicaKey]) -> tuple[State, tuple[Effect, ...]] | None:
    """Find a place for replicas whose node is lost; None when one of them has none."""
    moves: tuple[Effect, ...] = ()
    for key in keys:
        if state.seats[key] in state.lost:
            moved = _reseat(state, key)
            if moved is None:
                return None
            state, move = moved
            moves += (move,)
    return state, moves


def _reseat(state: State, key: ReplicaKey) -> tuple[State, Replace] | None:
    """Move a replica to a spare node, or leave it out where its group may be smaller."""
    node = state.seats[key]
    evidence = state.lost[node]
    if state.spares:
        spare, *rest = state.spares
        state = replace(state, seats={**state.seats, key: spare}, spares=tuple(rest))
        return state, Replace(key, node, spare, evidence)
    smallest = state.roles[key.role].min_group
    if smallest is None or len(state.members(key.role)) <= max(1, smallest):
        return None
    left = {group - {key}: delay for group, delay in state.restarting.items() if group != {key}}
    resting = {number: keys - {key} for number, keys in state.resting.items() if keys != {key}}
    state = replace(state, dropped=state.dropped | {key}, restarting=left, resting=resting)
    return state, Replace(key, node, None, evidence)


def _restart(
    state: State, members: frozenset[ReplicaKey], delay: float
) -> tuple[State, tuple[Effect, ...]]:
    """Stop these and restart them together, with those that already wait for one of them."""
    seated = _seat(state, sorted(members))  # one that had ended may have lost its node since
    if seated is None:
        lost = next(key for key in sorted(members) if state.seats[key] in state.lost)
        return _end(state, AppVerdict(AppState.FAILED, f"node_lost_{state.seats[lost]}"))
    state, moves = seated
    members -= state.dropped
    if not members:
        state, after = _settle(state)
        return state, moves + after
    state, stops = _stop(state, sorted(members), ReplicaPhase.STOPPING)
    state = _joined(state, members, delay)
    state, after = _settle(state)
    return state, moves + stops + after


def _joined(state: State, members: frozenset[ReplicaKey], delay: float) -> State:
    """Have these start together with all that waits for one of them."""
    joined = {group for group in state.restarting if group & members}
    resting = {number for number, group in state.resting.items() if group & members}
    together = members.union(*joined, *(state.resting[number] for number in resting))
    longest = max((delay, *(state.restarting[group] for group in joined)))
    left = {group: at for group, at in state.restarting.items() if group not in joined}
    rest = {number: group for number, group in state.resting.items() if number not in resting}
    return replace(state, restarting={**left, together: longest}, resting=rest)


def _end(state: State, verdict: AppVerdict) -> tuple[State, tuple[Effect, ...]]:
    """Stop what runs; the first verdict holds, but a cancellation ends a retry under way."""
    state = replace(state, verdict=state.verdict or verdict, restarting={}, resting={})
    running = [key for key, replica in state.replicas.items() if replica.phase is ReplicaPhase.UP]
    state, stops = _stop(state, running, ReplicaPhase.STOPPING)
    state, after = _settle(state)
    return state, stops + after


def _settle(state: State) -> tuple[State, tuple[Effect, ...]]:
    """See whether a restart can begin or the app is over."""
    up = {key for key, replica in state.replicas.items() if replica.alive}
    ready = {group: delay for group, delay in state.restarting.items() if not group & up}
    if ready:
        left = {group: at for group, at in state.restarting.items() if group not in ready}
        return _begin(replace(state, restarting=left), ready)
    if up or state.resting:
        return state, ()
    verdict = state.verdict or AppVerdict(AppState.SUCCEEDED, "")
    return replace(state, verdict=verdict, finished=True), (Finish(verdict),)


def _begin(
    state: State, ready: Mapping[frozenset[ReplicaKey], float]
) -> tuple[State, tuple[Effect, ...]]:
    """Start groups of which nothing runs any more, or have those wait that are to."""
    waits: list[Effect] = []
    for group, delay in ready.items():
        if delay:
            number = state.rests + 1
            state = replace(state, rests=number, resting={**state.resting, number: group})
            waits.append(Wait(number, delay))
    now = [group for group, delay in ready.items() if not delay]
    state, starts = _start(state, frozenset().union(*now), again=True)
    return state, (*waits, *starts)


def _start(
    state: State, keys: Iterable[ReplicaKey], again: bool = False
) -> tuple[State, tuple[Effect, ...]]:
    effects: list[Effect] = []
    for key in sorted(keys):
        attempt = state.replicas[key].attempt + again
        alive = frozenset(range(state.roles[key.role].ranks_of(key.index)))
        state = _put(state, key, Replica(ReplicaPhase.UP, alive, attempt))
        effects.append(Start(key, attempt))
    return state, tuple(effects)


def _stop(
    state: State, keys: Iterable[ReplicaKey], phase: ReplicaPhase
) -> tuple[State, tuple[Effect, ...]]:
    """Stop what is up; a replica that is being stopped is not stopped again."""
    effects: list[Effect] = []
    for key in keys:
        replica = state.replicas[key]
        state = _put(state, key, replace(replica, phase=phase))
        if replica.alive and replica.phase is ReplicaPhase.UP:
            effects.append(Stop(key))
    return state, tuple(effects)


def _put(state: State, key: ReplicaKey, replica: Replica) -> State:
    return replace(state, replicas={**state.replicas, key: replica})


def _scope(policy: RetryPolicy, key: ReplicaKey) -> Scope:
    """Return under which name retries of this failure are counted."""
    if policy is RetryPolicy.REPLICA:
        return ("replica", key.role, str(key.index))
    return ("role", key.role) if policy is RetryPolicy.ROLE else ("app",)


def _members(state: State, policy: RetryPolicy, key: ReplicaKey) -> Iterator[ReplicaKey]:
    """Return who is started again together."""
    for other in state.replicas:
        if other in state.dropped:
            continue
        same_role = policy is RetryPolicy.ROLE and other.role == key.role
        if policy is RetryPolicy.APPLICATION or same_role or other == key:
            yield other


def _enough_left(state: State, rule: RoleRule) -> bool:
    """Return whether the role may continue with those that did not fail, at least one."""
    if rule.min_replicas is None:
        return False
    keys = (ReplicaKey(rule.name, index) for index in range(rule.replicas))
    good = sum(state.replicas[key].phase is not ReplicaPhase.FAILED for key in keys)
    return good >= max(1, rule.min_replicas)
