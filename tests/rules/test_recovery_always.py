"""Whatever happens in whatever order: what the recovery rule never does and always does."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from torchloom.rules.recovery import step
from torchloom.rules.replicas import (
    AppVerdict,
    Begin,
    Cancelled,
    Effect,
    Event,
    Finish,
    Idle,
    Leaving,
    NodeLost,
    ProgressMark,
    RankExited,
    Reached,
    Replace,
    ReplicaPhase,
    RoleRule,
    Start,
    StartFailed,
    Stop,
    Wait,
    WaitOver,
    initial,
)
from torchloom.specs.api import AppState, RetryPolicy
from torchloom.specs.states import ReplicaKey


def role_rules(name: str) -> st.SearchStrategy[RoleRule]:
    return st.builds(
        RoleRule,
        name=st.just(name),
        replicas=st.integers(1, 3),
        ranks=st.integers(1, 3),
        max_retries=st.integers(0, 2),
        backoff=st.sampled_from([0.0, 0.0, 1.5]),
        crash_loop=st.integers(0, 2),
        policy=st.sampled_from(RetryPolicy),
        min_replicas=st.none() | st.integers(0, 3),
        min_group=st.none() | st.integers(1, 3),
    )


def groups() -> st.SearchStrategy[RoleRule]:
    return st.builds(
        RoleRule,
        name=st.just("a"),
        replicas=st.integers(2, 4),
        ranks=st.integers(1, 2),
        max_retries=st.integers(1, 4),
        backoff=st.sampled_from([0.0, 1.5]),
        policy=st.sampled_from([RetryPolicy.ROLE, RetryPolicy.APPLICATION, RetryPolicy.REPLICA]),
        min_group=st.none() | st.integers(1, 3),
    )


def apps() -> st.SearchStrategy[list[RoleRule]]:
    return st.integers(1, 3).flatmap(lambda n: st.tuples(*map(role_rules, "abc"[:n])).map(list))


class World(RuleBasedStateMachine):
    """Processes as a kernel has them: they live from Start to their exit, whatever is decided."""

    @initialize(roles=apps(), spares=st.none() | st.integers(0, 2), begins=st.booleans())
    def begin(self, roles: list[RoleRule], spares: int | None, begins: bool) -> None:
        self.set_up(roles, spares, begins)

    def set_up(self, roles: list[RoleRule], spares: int | None, begins: bool) -> None:
        """Without a number of spares all replicas are on one node, else each on its own."""
        self.roles = {role.name: role for role in roles}
        replicas = sum(role.replicas for role in roles)
        self.nodes = [f"n{i}" for i in range(1 if spares is None else replicas + spares)]
        self.generation = 7 if spares else 0
        self.state = initial(roles, self.nodes, self.generation)
        self.waits: dict[int, float] = {}
        self.begun = False
        self.lost: set[str] = set()
        self.idled = False
        self.alive: dict[ReplicaKey, set[int]] = {key: set() for key in self.state.replicas}
        self.starts = dict.fromkeys(self.alive, self.generation)
        self.told_to_stop: set[ReplicaKey] = set()
        self.went_wrong: set[ReplicaKey] = set()  # in its present life
        self.cancelled = False
        self.verdict: AppVerdict | None = None
        if begins:
            self.it_begins()

    # What may happen.

    @precondition(lambda self: not self.begun)
    @rule()
    def it_begins(self) -> None:
        self.begun = True
        self.happen(Begin())

    @rule(data=st.data(), when=st.integers(0, 2))
    def a_node_is_lost(self, data: st.DataObject, when: int) -> None:
        left = [node for node in self.nodes if node not in self.lost]
        if when == 0 and left:
            node = data.draw(st.sampled_from(left))
            self.lost.add(node)
            for key, seat in self.state.seats.items():
                if seat == node:
                    self.alive[key].clear()
            self.happen(NodeLost(node, "silence"))

    @rule(when=st.integers(0, 9))
    def nothing_is_printed(self, when: int) -> None:
        if when == 0:
            self.idled = True
            self.happen(Idle("idle"))

    @precondition(lambda self: any(self.alive.values()))
    @rule(data=st.data(), ok=st.booleans())
    def a_rank_ends(self, data: st.DataObject, ok: bool) -> None:
        living = [(key, rank) for key, ranks in self.alive.items() for rank in sorted(ranks)]
        self.end(*data.draw(st.sampled_from(living)), ok)

    @rule(when=st.integers(0, 4))
    def somebody_cancels(self, when: int) -> None:
        if when == 0:  # not in every history
            self.cancelled = self.cancelled or self.verdict is None
            self.happen(Cancelled("cancelled_by_user"))

    @rule(when=st.integers(0, 9))
    def it_is_asked_to_leave(self, when: int) -> None:
        if when == 0:
            self.cancelled = self.cancelled or self.verdict is None
            self.happen(Leaving("cancelled_by_user"))

    @precondition(lambda self: bool(self.waits))
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waits)))
        del self.waits[number]
        self.happen(WaitOver(number))

    @precondition(lambda self: any(self.alive.values()))
    @rule(data=st.data(), saved=st.integers(-1, 2), lived=st.floats(0, 9))
    def a_replica_has_come_so_far(self, data: st.DataObject, saved: int, lived: float) -> None:
        key = data.draw(st.sampled_from([key for key, ranks in self.alive.items() if ranks]))
        self.happen(Reached(key, ProgressMark(saved, saved, lived)))

    @precondition(lambda self: any(self.alive.values()))
    @rule(data=st.data(), when=st.integers(0, 4))
    def a_start_turns_out_to_have_failed(self, data: st.DataObject, when: int) -> None:
        fresh = [key for key, ranks in self.alive.items() if self.is_whole(key, ranks)]
        if when == 0 and fresh:
            key = data.draw(st.sampled_from(fresh))
            self.alive[key].clear()
            self.went_wrong.add(key)
            self.happen(StartFailed(key, "cannot_start"))

    # What must hold.

    def happen(self, event: Event) -> None:
        was_over = self.verdict is not None
        self.state, effects = step(self.state, event)
        assert not (was_over and effects)
        for effect in effects:
            self.carry_out(effect)
        if self.begun:
            goes_on = any(self.alive.values()) or self.waits
            assert goes_on or self.verdict is not None, "nothing runs, none told"
        self.all_have_seats()

    def all_have_seats(self) -> None:
        """Whoever is up or to come back has a node that is there; each its own where there are."""
        if self.state.verdict is not None:
            return
        done = (ReplicaPhase.SUCCEEDED, ReplicaPhase.FAILED)
        needed = [
            key
            for key, replica in self.state.replicas.items()
            if replica.phase not in done and key not in self.state.dropped
        ]
        seats = [self.state.seats[key] for key in needed]
        assert not self.lost & set(seats), "somebody waits for a lost node"
        assert len(self.nodes) == 1 or len(set(seats)) == len(seats), "two on one node"
        assert not set(seats) & set(self.state.spares) or len(self.nodes) == 1

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Start():
                self.start(effect)
            case Stop():
                assert self.alive[effect.key]
                assert effect.key not in self.told_to_stop, "told twice in one life"
                self.told_to_stop.add(effect.key)
            case Wait():
                assert effect.seconds > 0
                assert not self.cancelled
                assert effect.number not in self.waits
                self.waits[effect.number] = effect.seconds
            case Replace():
                assert effect.lost in self.lost
                assert effect.spare not in self.lost
            case Finish():
                assert self.verdict is None, "finished twice"
                assert not any(self.alive.values()), "something still runs"
                self.verdict = effect.verdict
                self.judge(effect.verdict)

    def start(self, effect: Start) -> None:
        key = effect.key
        assert not self.alive[key], "the life before is not over"
        assert self.begun
        assert key not in self.state.dropped, "the group goes on without it"
        assert self.state.seats[key] not in self.lost, "its node is gone"
        assert not self.cancelled
        assert effect.attempt == self.starts[key]
        self.starts[key] += 1
        assert self.starts[key] <= self.generation + 1 + self.allowed_retries(key)
        assert self.state.restarts >= effect.attempt
        self.alive[key] = set(range(self.roles[key.role].ranks))
        self.told_to_stop.discard(key)
        self.went_wrong.discard(key)

    def judge(self, verdict: AppVerdict) -> None:
        match verdict.state:
            case AppState.SUCCEEDED:
                assert all(self.did_enough(role) for role in self.roles.values())
            case AppState.CANCELLED:
                assert self.cancelled
            case _:
                assert self.went_wrong or self.lost or self.idled

    def did_enough(self, role: RoleRule) -> bool:
        dropped = sum(key.role == role.name for key in self.state.dropped)
        assert not dropped or role.replicas - dropped >= (role.min_group or role.replicas)
        bad = {key for key in self.went_wrong if key.role == role.name} - self.state.dropped
        least = role.replicas if role.min_replicas is None else max(1, role.min_replicas)
        return not bad or role.replicas - len(bad) >= least

    def allowed_retries(self, key: ReplicaKey) -> int:
        """The budget of the replica or role it belongs to, and the app's, which all share."""
        own = self.roles[key.role]
        shared = [
            role.max_retries
            for role in self.roles.values()
            if role.policy is RetryPolicy.APPLICATION
        ]
        alone = 0 if own.policy is RetryPolicy.APPLICATION else own.max_retries
        return alone + max(shared, default=0)

    def is_whole(self, key: ReplicaKey, ranks: set[int]) -> bool:
        return len(ranks) == self.roles[key.role].ranks and key not in self.told_to_stop

    def end(self, key: ReplicaKey, rank: int, ok: bool) -> None:
        self.alive[key].discard(rank)
        if not ok and key not in self.told_to_stop:
            self.went_wrong.add(key)
        self.happen(RankExited(key, rank, ok, f"{key.role}{key.index}/{rank}"))

    def teardown(self) -> None:
        """Every app comes to an end when its processes do."""
        if not self.begun:
            self.it_begins()
        for _ in range(1000):
            living = [(key, rank) for key, ranks in self.alive.items() for rank in ranks]
            if not living and not self.waits:
                break
            if living:
                self.end(*living[0], ok=True)
            else:
                number, _ = self.waits.popitem()
                self.happen(WaitOver(number))
        assert self.verdict is not None


class OverHosts(World):
    """A group that spans nodes, with retries enough to outlive the loss of some."""

    @initialize(role=groups(), spares=st.integers(0, 2))
    def begin(self, role: RoleRule, spares: int) -> None:
        self.set_up([role], spares, begins=True)

    @precondition(lambda self: any(self.alive.values()))
    @rule(data=st.data())
    def a_replica_is_done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key, ranks in self.alive.items() if ranks]))
        for rank in sorted(self.alive[key]):
            self.end(key, rank, ok=True)


TestWhateverHappensOverHosts = OverHosts.TestCase
TestWhateverHappensOverHosts.settings = settings(
    max_examples=100, stateful_step_count=15, deadline=None, derandomize=True, database=None
)
TestWhateverHappens = World.TestCase
TestWhateverHappens.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
