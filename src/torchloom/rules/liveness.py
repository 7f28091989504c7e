"""Decide that a node is lost from its agent's silence, counting only the time we could receive.

A process that was stopped, starved or disconnected from the bus received nothing, and that is no
evidence about the agents. Silence is therefore measured on a clock that runs only while there is
evidence that we can receive, runs no faster than we tick, and after every gap gives all agents time
to reconnect.

Ten thousand agents are scanned only when one of them can be silent for too long, about once a
second; until then it is enough to keep which agents were seen at each tick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_MOST_RECENT = 100  # ticks
_ROUNDING = (
    1e-6  # seconds; a heartbeat's interval and `deaf` together are just as long as `silence`
)


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long an agent may be silent, and how we know that it is not us."""

    silence: float = 2.0  # a node is lost after this much silence while we could receive
    most_per_tick: float = 0.5  # what counts of the time between two ticks, at most
    gap: float = 2.0  # a longer time between two ticks: we were stopped
    deaf: float = 1.0  # nothing received for longer, not our own echo: we were disconnected
    grace: float = 2.0  # for agents to be seen again after either
    comeback: float = 15.0  # for all of them to connect again when the bus itself was away


@dataclass(frozen=True, slots=True)
class State:
    """When each agent was last seen, on the clock of receiving."""

    limits: LivenessLimits = field(default_factory=LivenessLimits)
    seen_at: Mapping[str, float] = field(default_factory=dict)  # older than `recent`
    recent: tuple[tuple[float, frozenset[str]], ...] = ()  # agents seen, tick by tick
    due: float = 0.0  # before this no agent can have been silent for too long
    lost: frozenset[str] = frozenset()
    listened: float = 0.0
    floor: float = 0.0  # silence before this does not count
    deaf_for: float = 0.0
    now: float | None = None


@dataclass(frozen=True, slots=True)
class LivenessTick:
    """The time of the monotonic clock, with all agents seen since the last tick.

    `echo` says that a message of our own came back over the bus: evidence that we can receive.
    Without it the silence of an only agent looks like that of a bus.
    """

    now: float
    seen: frozenset[str] = frozenset()
    echo: bool = False


@dataclass(frozen=True, slots=True)
class BusInterrupted:
    """Our connection to the bus broke, or came back: agents may need time to do the same."""


@dataclass(frozen=True, slots=True)
class AgentLeft:
    """An agent has left; its silence means nothing."""

    node: str


Event = LivenessTick | BusInterrupted | AgentLeft


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """A node counts as lost, with all that ran there."""

    node: str
    silent_for: float


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A node that counted as lost is seen again; what it runs is of an older generation."""

    node: str


Effect = NodeSilent | NodeBack


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Handle one event; return the new state and what to do."""
    match event:
        case LivenessTick():
            return _tick(state, event)
        case BusInterrupted():
            return _forgive(state, state.limits.comeback), ()
        case AgentLeft():
            seen_at = _all_seen(state)
            seen_at.pop(event.node, None)
            lost = state.lost - {event.node}
            return replace(state, seen_at=seen_at, recent=(), lost=lost), ()


def _tick(state: State, tick: LivenessTick) -> tuple[State, tuple[Effect, ...]]:
    state = _advance(state, tick)
    back = sorted(tick.seen & state.lost)
    if tick.seen:
        recent = (*state.recent, (state.listened, tick.seen))
        lost = state.lost.difference(back) if back else state.lost
        state = replace(state, recent=recent, lost=lost)
    if len(state.recent) > _MOST_RECENT:
        state = replace(state, seen_at=_all_seen(state), recent=())
    silent: list[str] = []
    if state.listened >= max(state.due, state.floor + state.limits.silence):
        state, silent = _scan(state)
    since = {node: state.listened - max(state.seen_at[node], state.floor) for node in silent}
    return state, (*map(NodeBack, back), *(NodeSilent(node, gap) for node, gap in since.items()))


def _scan(state: State) -> tuple[State, list[str]]:
    """Find agents that have been silent for too long, and when the next one may be."""
    seen_at, lost = _all_seen(state), state.lost
    limit = state.listened - state.limits.silence
    silent = [node for node, at in seen_at.items() if at <= limit and node not in lost]
    lost = lost.union(silent)
    oldest = min((at for node, at in seen_at.items() if node not in lost), default=state.listened)
    due = oldest + state.limits.silence
    return replace(state, seen_at=seen_at, recent=(), due=due, lost=lost), silent


def _all_seen(state: State) -> dict[str, float]:
    """Return when each agent was last seen."""
    seen_at = dict(state.seen_at)
    for at, seen in state.recent:
        seen_at.update(dict.fromkeys(seen, at))
    return seen_at


def _advance(state: State, tick: LivenessTick) -> State:
    """Advance the clock of receiving, unless we were stopped or disconnected."""
    limits, last = state.limits, state.now
    state = replace(state, now=tick.now)
    if last is None:
        return state
    gap = tick.now - last
    if not 0 <= gap <= limits.gap:
        return replace(_forgive(state), deaf_for=0.0)
    is_receiving = bool(tick.seen) or tick.echo
    if is_receiving and state.deaf_for + gap > limits.deaf:
        return replace(_forgive(state), deaf_for=0.0)
    if not is_receiving and state.deaf_for + gap >= limits.deaf - _ROUNDING:
        return replace(state, deaf_for=state.deaf_for + gap)
    counted = state.listened + min(gap, limits.most_per_tick)
    return replace(state, listened=counted, deaf_for=0.0 if is_receiving else state.deaf_for + gap)


def _forgive(state: State, grace: float | None = None) -> State:
    """Count silence from later on, so that running agents have time to be seen."""
    floor = state.listened + (state.limits.grace if grace is None else grace)
    return replace(state, floor=max(state.floor, floor))
