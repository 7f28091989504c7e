"""Lives one after the other: the wait between them, when they lead nowhere, how one leaves."""

from dataclasses import dataclass, field

from torchloom.rules.recovery import LONGEST_BACKOFF, step
from torchloom.rules.replicas import (
    AppVerdict,
    Begin,
    Cancelled,
    Effect,
    Event,
    Finish,
    Leaving,
    NodeLost,
    ProgressMark,
    RankExited,
    Reached,
    RestartHistory,
    RoleRule,
    Start,
    State,
    Stop,
    Wait,
    WaitOver,
    initial,
)
from torchloom.specs.api import AppState
from torchloom.specs.states import ReplicaKey

KEY = ReplicaKey("a", 0)
CANCELLED = AppVerdict(AppState.CANCELLED, "cancelled_by_user")


@dataclass
class App:
    """One role under the rule."""

    state: State
    log: list[Effect] = field(default_factory=list)

    @classmethod
    def of(cls, rule: RoleRule, generation: int = 0, nodes: tuple[str, ...] = ("n",)) -> "App":
        app = cls(initial([rule], nodes, generation))
        app.tell(Begin())
        return app

    def tell(self, event: Event) -> list[Effect]:
        self.state, effects = step(self.state, event)
        self.log += effects
        return list(effects)

    def fails(self, point: ProgressMark | None = None, rank: int = 0) -> list[Effect]:
        if point is not None:
            self.tell(Reached(KEY, point))
        return self.tell(RankExited(KEY, rank, False, "exit_code_1_rank_0"))

    def is_due(self) -> list[Effect]:
        (wait,) = [effect for effect in self.log if isinstance(effect, Wait)][-1:]
        return self.tell(WaitOver(wait.number))


def failed(reason: str) -> list[Effect]:
    return [Finish(AppVerdict(AppState.FAILED, reason))]


def test_the_wait_before_a_restart_doubles_each_time_up_to_a_limit() -> None:
    app = App.of(RoleRule("a", max_retries=9, backoff=50.0))
    waits = []

    for attempt in range(1, 5):
        (wait,) = app.fails()
        waits.append(wait)
        assert app.is_due() == [Start(KEY, attempt)]

    seconds = [50.0, 100.0, 200.0, LONGEST_BACKOFF]
    assert waits == [Wait(number, each) for number, each in enumerate(seconds, 1)]


def test_nothing_waits_where_no_time_is_given() -> None:
    app = App.of(RoleRule("a", max_retries=1))

    assert app.fails() == [Start(KEY, 1)]


def test_the_wait_begins_when_nothing_of_the_life_before_runs_any_more() -> None:
    app = App.of(RoleRule("a", ranks=2, max_retries=1, backoff=1.0))

    assert app.fails() == [Stop(KEY)]
    assert app.tell(RankExited(KEY, 1, False, "exit_signal_15_rank_1")) == [Wait(1, 1.0)]
    assert app.tell(WaitOver(1)) == [Start(KEY, 1)]


def test_an_app_that_waits_is_cancelled_at_once_and_starts_nothing_when_its_time_comes() -> None:
    app = App.of(RoleRule("a", max_retries=1, backoff=60.0))
    app.fails()

    assert app.tell(Cancelled("cancelled_by_user")) == [Finish(CANCELLED)]
    assert app.tell(WaitOver(1)) == []


def test_a_wait_that_was_overtaken_by_the_loss_of_a_node_ends_with_those_left() -> None:
    rule = RoleRule("a", replicas=2, max_retries=2, backoff=1.0, min_group=1)
    app = App.of(rule, nodes=("n0", "n1"))
    app.fails()
    app.tell(RankExited(ReplicaKey("a", 1), 0, False, ""))

    app.tell(NodeLost("n1", "silence"))

    assert app.is_due() == [Start(KEY, 1)]


def test_three_restarts_that_come_no_further_are_a_crash_loop() -> None:
    app = App.of(RoleRule("a", max_retries=10, crash_loop=3))
    point = ProgressMark(saved=100, step=137, lived=9.0)

    assert [app.fails(point) for _ in range(4)] == [
        [Start(KEY, 1)],
        [Start(KEY, 2)],
        [Start(KEY, 3)],
        failed("crash_loop_exit_code_1_rank_0"),
    ]


def test_attempts_that_are_used_up_are_no_crash_loop() -> None:
    app = App.of(RoleRule("a", max_retries=2, crash_loop=3))

    assert [app.fails(ProgressMark()) for _ in range(3)][-1] == failed("exit_code_1_rank_0")


def test_whatever_comes_further_begins_the_count_anew() -> None:
    app = App.of(RoleRule("a", max_retries=99, crash_loop=3))
    stuck = ProgressMark(saved=100, step=137, lived=9.0)
    further = (
        ProgressMark(saved=120, step=121, lived=1.0),  # a newer checkpoint
        ProgressMark(saved=120, step=138, lived=1.0),  # a later step
        ProgressMark(saved=120, step=130, lived=30.0),  # clearly longer
    )

    assert app.fails(stuck) == [Start(KEY, 1)]
    for point in further:
        for _ in range(2):
            assert isinstance(app.fails(stuck)[0], Start)
        assert isinstance(app.fails(point)[0], Start)


def test_a_life_a_moment_longer_has_come_no_further() -> None:
    lives = RestartHistory(ProgressMark(lived=10.0), stuck=1).then(ProgressMark(lived=11.0))

    assert lives == RestartHistory(ProgressMark(lived=11.0), stuck=2)


def test_without_a_limit_every_attempt_is_made() -> None:
    app = App.of(RoleRule("a", max_retries=5))

    assert [app.fails(ProgressMark()) for _ in range(6)][-1] == failed("exit_code_1_rank_0")


def test_a_run_that_goes_on_begins_with_the_generation_it_is_given() -> None:
    app = App.of(RoleRule("a", max_retries=1), generation=4)

    assert (app.log, app.state.restarts) == ([Start(KEY, 4)], 4)
    assert (app.fails(), app.state.restarts) == ([Start(KEY, 5)], 5)


def test_ranks_that_leave_by_themselves_are_not_stopped_and_the_app_is_cancelled() -> None:
    app = App.of(RoleRule("a", ranks=2, max_retries=3))

    assert app.tell(Leaving("cancelled_by_user")) == []
    assert app.tell(RankExited(KEY, 0, True)) == []
    assert app.tell(RankExited(KEY, 1, True)) == [Finish(CANCELLED)]


def test_a_rank_that_fails_while_it_should_leave_is_not_started_again() -> None:
    app = App.of(RoleRule("a", ranks=2, max_retries=3))
    app.tell(Leaving("cancelled_by_user"))

    assert app.fails() == [Stop(KEY)]
    assert app.tell(RankExited(KEY, 1, False, "")) == [Finish(CANCELLED)]


def test_whoever_does_not_leave_in_time_is_stopped() -> None:
    app = App.of(RoleRule("a", max_retries=3))
    app.tell(Leaving("cancelled_by_user"))

    assert app.tell(Cancelled("later")) == [Stop(KEY)]
    assert app.fails() == [Finish(CANCELLED)]
