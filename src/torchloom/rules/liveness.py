"""Decide that a node is lost from its agent's silence, counting only the time we listened.

Whoever was stopped, starved or cut off from the bus heard nobody, and that says nothing about the
others. So silence is measured on a clock that runs while there is evidence that we can hear, runs
no faster than we look, and after every gap gives all agents time to find back.

Ten thousand agents are looked through only when one of them can be silent for too long, which is
once a second while all is well; until then it is enough to keep who was heard at each look.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_MOST_RECENT = 100  # looks


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long an agent may be silent, and how we know that it is not us."""

    silence: float = 2.0  # a node is lost after this much silence that we listened to
    most_per_tick: float = 0.5  # what counts of the time between two looks, at most
    gap: float = 2.0  # a longer time between two looks: we were stopped
    deaf: float = 1.0  # no word from anybody for longer, not our own echo: we were cut off
    grace: float = 2.0  # for agents to be heard again after either
    comeback: float = 15.0  # for all of them to connect again when the bus itself was away


@dataclass(frozen=True, slots=True)
class State:
    """When each agent was last heard, on the clock of listening."""

    limits: LivenessLimits = field(default_factory=LivenessLimits)
    heard_at: Mapping[str, float] = field(default_factory=dict)  # but for what `recent` says
    recent: tuple[tuple[float, frozenset[str]], ...] = ()  # who was heard, look by look
    due: float = 0.0  # before this nobody can have been silent for too long
    lost: frozenset[str] = frozenset()
    listened: float = 0.0
    floor: float = 0.0  # silence before this does not count
    deaf_for: float = 0.0
    now: float | None = None


@dataclass(frozen=True, slots=True)
class LivenessTick:
    """A look at the monotonic clock, with all agents heard since the last one.

    `echo` says that a word of our own came back over the bus: evidence that we can hear, without
    which one agent alone that falls silent cannot be told from a bus that does.
    """

    now: float
    heard: frozenset[str] = frozenset()
    echo: bool = False


@dataclass(frozen=True, slots=True)
class BusInterrupted:
    """Our connection to the bus broke, or came back: agents may need time to do the same."""


@dataclass(frozen=True, slots=True)
class AgentLeft:
    """An agent said goodbye; its silence means nothing."""

    node: str


Event = LivenessTick | BusInterrupted | AgentLeft


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Take a node and all that ran there for gone."""

    node: str
    silent_for: float


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A node that was taken for lost is heard again; what it runs is of an older generation."""

    node: str


Effect = NodeSilent | NodeBack


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Take in one event; return the new state and what to do."""
    match event:
        case LivenessTick():
            return _tick(state, event)
        case BusInterrupted():
            return _forgive(state, state.limits.comeback), ()
        case AgentLeft():
            heard_at = _all_heard(state)
            heard_at.pop(event.node, None)
            lost = state.lost - {event.node}
            return replace(state, heard_at=heard_at, recent=(), lost=lost), ()


def _tick(state: State, tick: LivenessTick) -> tuple[State, tuple[Effect, ...]]:
    state = _listen(state, tick)
    back = sorted(tick.heard & state.lost)
    if tick.heard:
        recent = (*state.recent, (state.listened, tick.heard))
        lost = state.lost.difference(back) if back else state.lost
        state = replace(state, recent=recent, lost=lost)
    if len(state.recent) > _MOST_RECENT:
        state = replace(state, heard_at=_all_heard(state), recent=())
    silent: list[str] = []
    if state.listened >= max(state.due, state.floor + state.limits.silence):
        state, silent = _look_through(state)
    since = {node: state.listened - max(state.heard_at[node], state.floor) for node in silent}
    return state, (*map(NodeBack, back), *(NodeSilent(node, gap) for node, gap in since.items()))


def _look_through(state: State) -> tuple[State, list[str]]:
    """Return who has become silent for too long, and when somebody may be so next."""
    heard_at, lost = _all_heard(state), state.lost
    limit = state.listened - state.limits.silence
    silent = [node for node, at in heard_at.items() if at <= limit and node not in lost]
    lost = lost.union(silent)
    oldest = min((at for node, at in heard_at.items() if node not in lost), default=state.listened)
    due = oldest + state.limits.silence
    return replace(state, heard_at=heard_at, recent=(), due=due, lost=lost), silent


def _all_heard(state: State) -> dict[str, float]:
    """Return when each agent was last heard."""
    heard_at = dict(state.heard_at)
    for at, heard in state.recent:
        heard_at.update(dict.fromkeys(heard, at))
    return heard_at


def _listen(state: State, tick: LivenessTick) -> State:
    """Let the clock of listening run, unless we were away or cut off."""
    limits, last = state.limits, state.now
    state = replace(state, now=tick.now)
    if last is None:
        return state
    gap = tick.now - last
    if not 0 <= gap <= limits.gap:
        return replace(_forgive(state), deaf_for=0.0)
    is_hearing = bool(tick.heard) or tick.echo
    if is_hearing and state.deaf_for + gap > limits.deaf:
        return replace(_forgive(state), deaf_for=0.0)
    if not is_hearing and state.deaf_for + gap > limits.deaf:
        return replace(state, deaf_for=state.deaf_for + gap)
    counted = state.listened + min(gap, limits.most_per_tick)
    return replace(state, listened=counted, deaf_for=0.0 if is_hearing else state.deaf_for + gap)


def _forgive(state: State, grace: float | None = None) -> State:
    """Count silence from later on, so that whoever lives has time to be heard."""
    floor = state.listened + (state.limits.grace if grace is None else grace)
    return replace(state, floor=max(state.floor, floor))
