from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from torchloom.rules.liveness import (
    AgentLeft,
    BusInterrupted,
    Effect,
    LivenessLimits,
    LivenessTick,
    NodeBack,
    NodeSilent,
    State,
    step,
)

LIMITS = LivenessLimits()


def after(state: State, *ticks: LivenessTick) -> tuple[State, list[Effect]]:
    told: list[Effect] = []
    for tick in ticks:
        state, effects = step(state, tick)
        told += effects
    return state, told


def looks(start: float, end: float, *heard: str, echo: bool = False) -> list[LivenessTick]:
    """Return a look every quarter of a second, each hearing the same agents."""
    count = round((end - start) * 4)
    return [LivenessTick(start + i / 4, frozenset(heard), echo) for i in range(1, count + 1)]


def test_a_silent_node_is_lost_exactly_once_while_another_is_heard() -> None:
    state, _ = after(State(), *looks(0, 1, "a", "b"))

    state, told = after(state, *looks(1, 10, "b"))

    assert told == [NodeSilent("a", 2.0)]
    assert state.lost == {"a"}


def test_a_node_alone_is_lost_when_our_own_echo_says_that_we_hear() -> None:
    state, _ = after(State(), *looks(0, 1, "a"))

    assert after(state, *looks(1, 4, echo=True))[1] == [NodeSilent("a", 2.0)]
    assert after(state, *looks(1, 60))[1] == []


def test_a_lost_node_that_speaks_is_back_and_can_be_lost_again() -> None:
    state, _ = after(State(), *looks(0, 1, "a", "b"), *looks(1, 5, "b"))

    state, told = after(state, *looks(5, 5.25, "a", "b"), *looks(5.25, 9, "b"))

    assert told == [NodeBack("a"), NodeSilent("a", 2.0)]


def test_a_minute_in_which_we_were_stopped_kills_nobody() -> None:
    state, _ = after(State(), *looks(0, 1, "a", "b"))

    state, told = after(state, LivenessTick(61, frozenset({"b"})), *looks(61, 64.75, "b"))

    assert told == []
    assert after(state, *looks(64.75, 66, "b"))[1] == [NodeSilent("a", 2.0)]


def test_whoever_looks_seldom_counts_little_of_the_time_between() -> None:
    limits = LivenessLimits(deaf=5.0)
    state, _ = after(State(limits), *looks(0, 1, "a", "b"))
    seldom = [LivenessTick(1 + 1.9 * i, frozenset({"b"})) for i in range(1, 4)]

    state, told = after(state, *seldom)

    assert told == []
    assert after(state, LivenessTick(8.6, frozenset({"b"})))[1] == [NodeSilent("a", 2.0)]


def test_a_clock_that_jumps_either_way_kills_nobody() -> None:
    state, _ = after(State(), *looks(1000, 1001, "a", "b"))

    for jump in (-900.0, 4000.0):
        assert (
            after(state, LivenessTick(1001 + jump), *looks(1001 + jump, 1004 + jump, "b"))[1] == []
        )


def test_a_bus_that_was_down_gives_all_agents_time_to_come_back() -> None:
    state, _ = after(State(), *looks(0, 1, "a", "b", echo=True))

    state, told = after(state, *looks(1, 31), *looks(31, 34, "b", echo=True))
    assert told == []

    assert after(state, *looks(34, 36, "a", "b", echo=True))[1] == []


def test_a_short_break_that_we_know_of_gives_time_too() -> None:
    state, _ = after(State(), *looks(0, 1, "a", "b"), *looks(1, 2.5, "b"))

    state, _ = step(state, BusInterrupted())

    assert after(state, *looks(2.5, 6.25, "b"))[1] == []


def test_who_said_goodbye_is_not_lost() -> None:
    state, _ = after(State(), *looks(0, 1, "a", "b"))

    state, _ = step(state, AgentLeft("a"))

    assert after(state, *looks(1, 9, "b"))[1] == []


def test_when_a_third_dies_at_once_exactly_they_are_lost() -> None:
    nodes = [f"n{i}" for i in range(3000)]
    state, _ = after(State(), *looks(0, 1, *nodes))

    _, told = after(state, *looks(1, 4, *nodes[1000:]))

    assert {effect.node for effect in told} == set(nodes[:1000])


class World(RuleBasedStateMachine):
    """Agents that beat once a second, and a weaver that stops, starves and loses its bus."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.state = State()
        self.now, self.offset = 100.0, 0.0  # the world's time, and how far our clock jumped
        self.alive = {f"n{i}" for i in range(count)}
        self.next_beat = {node: self.now + i / 7 for i, node in enumerate(sorted(self.alive))}
        self.back_at = dict.fromkeys(self.alive, 0.0)  # connected to the bus again
        self.died_at: dict[str, float] = {}
        self.bus_is_up, self.stopped_until = True, 0.0
        self.lost: set[str] = set()
        self.disturbed_at = 0.0
        self.pass_time(5, 0.25)

    @rule(seconds=st.integers(1, 6), every=st.sampled_from([0.1, 0.25, 0.5, 0.9]))
    def time_passes(self, seconds: int, every: float) -> None:
        self.pass_time(seconds, every)

    def pass_time(self, seconds: float, every: float) -> None:
        for _ in range(round(seconds / every)):
            self.now += every
            heard = {node for node in self.alive if self.beats(node)}
            self.happen(LivenessTick(self.now + self.offset, frozenset(heard), self.bus_is_up))

    def beats(self, node: str) -> bool:
        if self.now < self.next_beat[node]:
            return False
        self.next_beat[node] = self.now + 1.0
        return self.bus_is_up and self.now >= self.back_at[node]

    def happen(self, event: LivenessTick) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            if isinstance(effect, NodeSilent):
                assert effect.node in self.died_at, "a false death"
                self.lost.add(effect.node)
        if self.bus_is_up and not self.is_starved(event):
            self.nobody_is_forgotten()

    def is_starved(self, event: LivenessTick) -> bool:
        return self.now - self.disturbed_at < 8.0

    def nobody_is_forgotten(self) -> None:
        for node, at in self.died_at.items():
            assert node in self.lost or self.now - at < 8.0, "a death that nobody sees"

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), when=st.integers(0, 2))
    def one_dies(self, data: st.DataObject, when: int) -> None:
        if when == 0:
            node = data.draw(st.sampled_from(sorted(self.alive)))
            self.alive.discard(node)
            self.died_at[node] = self.now

    @rule(seconds=st.integers(1, 60), jump=st.sampled_from([0.0, 0.0, -500.0, 3600.0]))
    def we_are_stopped(self, seconds: int, jump: float) -> None:
        """What was sent meanwhile is lost with the connection."""
        self.now += seconds
        self.offset += jump
        self.disturbed_at = self.now
        if seconds <= LIMITS.gap and not jump:
            for node in self.next_beat:  # so short that the socket kept it
                self.next_beat[node] = min(self.next_beat[node], self.now)

    @rule(seconds=st.integers(2, 40), late=st.floats(0, 1.5))
    def the_bus_is_down(self, seconds: int, late: float) -> None:
        self.bus_is_up = False
        self.pass_time(seconds, 0.25)
        self.bus_is_up = True
        self.disturbed_at = self.now
        for i, node in enumerate(sorted(self.back_at)):
            self.back_at[node] = self.now + late * (i % 2)


def test_an_interval_and_a_short_outage_kill_nobody_by_rounding() -> None:
    world = World()
    world.begin(count=1)
    world.we_are_stopped(seconds=1, jump=3600.0)
    world.time_passes(seconds=11, every=0.1)

    world.the_bus_is_down(seconds=2, late=0.0)

    assert world.lost == set()


TestWhateverDisturbsUs = World.TestCase
TestWhateverDisturbsUs.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
