from dataclasses import dataclass, field

import pytest

from torchloom.rules.recovery import step
from torchloom.rules.replicas import (
    AppVerdict,
    Begin,
    Cancelled,
    Effect,
    Event,
    Finish,
    LiveEnded,
    NodeLost,
    RankExited,
    RoleRule,
    Start,
    StartFailed,
    State,
    Stop,
    initial,
)
from torchloom.specs.api import AppState, RetryPolicy
from torchloom.specs.states import ReplicaKey

REPLICA, ROLE, APPLICATION = RetryPolicy.REPLICA, RetryPolicy.ROLE, RetryPolicy.APPLICATION
SUCCESS = AppVerdict(AppState.SUCCEEDED, "")
STOPPED = AppVerdict(AppState.CANCELLED, "cancelled_by_user")


def failed(cause: str) -> AppVerdict:
    return AppVerdict(AppState.FAILED, cause)


def key(name: str) -> ReplicaKey:
    """Return the replica `b1` names: role b, index 1."""
    return ReplicaKey(name[0], int(name[1:]))


@dataclass
class App:
    """An app under the rule: tell it what happens, see what it wants done."""

    state: State
    done: list[str] = field(default_factory=list)
    verdict: AppVerdict | None = None

    @classmethod
    def of(cls, *roles: RoleRule) -> "App":
        app = cls(initial(roles))
        app.tell(Begin())
        return app

    def tell(self, event: Event) -> list[str]:
        """Return the effects as short words: `start a0#1`, `stop a0`, `finish`."""
        self.state, effects = step(self.state, event)
        self.done = [self._word(effect) for effect in effects]
        return self.done

    def ends(self, replica: str, rank: int = 0, ok: bool = True) -> list[str]:
        return self.tell(RankExited(key(replica), rank, ok, "" if ok else f"{replica}/{rank}"))

    def fails(self, replica: str, rank: int = 0) -> list[str]:
        return self.ends(replica, rank, ok=False)

    def is_cancelled(self, reason: str = "cancelled_by_user") -> list[str]:
        return self.tell(Cancelled(reason))

    def _word(self, effect: Effect) -> str:
        match effect:
            case Start():
                return f"start {effect.key.role}{effect.key.index}#{effect.attempt}"
            case Stop():
                return f"stop {effect.key.role}{effect.key.index}"
            case Finish():
                self.verdict = effect.verdict
                return "finish"


# Without retries.


def test_begin_starts_every_replica_of_every_role_once() -> None:
    app = App.of(RoleRule("a", replicas=2), RoleRule("b"))

    assert app.done == ["start a0#0", "start a1#0", "start b0#0"]


def test_an_app_succeeds_when_its_last_replica_has() -> None:
    app = App.of(RoleRule("a", replicas=2))

    assert app.ends("a1") == []
    assert app.ends("a0") == ["finish"]
    assert app.verdict == SUCCESS


def test_a_replica_succeeds_when_all_its_ranks_have() -> None:
    app = App.of(RoleRule("a", ranks=3))

    assert app.ends("a0", 1) == []
    assert app.ends("a0", 0) == []
    assert app.ends("a0", 2) == ["finish"]
    assert app.verdict == SUCCESS


def test_a_failure_without_retries_stops_all_others_and_names_the_first_cause() -> None:
    app = App.of(RoleRule("a", replicas=2), RoleRule("b"))

    assert app.fails("a1") == ["stop a0", "stop b0"]
    assert app.fails("b0") == []
    assert app.ends("a0") == ["finish"]
    assert app.verdict == failed("a1/0")


def test_two_failures_at_once_are_one_end() -> None:
    app = App.of(RoleRule("a", replicas=2))

    assert app.fails("a0") == ["stop a1"]
    assert app.fails("a1") == ["finish"]
    assert app.verdict == failed("a0/0")


def test_a_rank_that_fails_takes_the_other_ranks_of_its_replica_down() -> None:
    app = App.of(RoleRule("a", ranks=2))

    assert app.fails("a0", 1) == ["stop a0"]
    assert app.fails("a0", 0) == ["finish"]
    assert app.verdict == failed("a0/1")


# Retries.


def test_replica_policy_starts_only_the_failed_replica_again() -> None:
    app = App.of(RoleRule("a", replicas=3, max_retries=1, policy=REPLICA))

    assert app.fails("a1") == ["start a1#1"]
    assert app.state.restarts == 1


def test_replica_policy_counts_every_replica_for_itself() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=1, policy=REPLICA))

    assert app.fails("a0") == ["start a0#1"]
    assert app.fails("a1") == ["start a1#1"]
    assert app.fails("a0") == ["stop a1"]
    assert app.ends("a1") == ["finish"]
    assert app.verdict == failed("a0/0")


def test_role_policy_starts_the_whole_role_again_and_leaves_other_roles_alone() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=1, policy=ROLE), RoleRule("b"))

    assert app.fails("a0") == ["stop a1"]
    assert app.fails("a1") == ["start a0#1", "start a1#1"]
    assert app.ends("b0") == []
    assert app.ends("a0") == []
    assert app.ends("a1") == ["finish"]
    assert (app.verdict, app.state.restarts) == (SUCCESS, 1)


def test_role_policy_counts_the_failures_of_all_replicas_together() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=1, policy=ROLE))
    app.fails("a0")
    app.ends("a1")

    assert app.fails("a1") == ["stop a0"]
    assert app.ends("a0") == ["finish"]
    assert app.verdict == failed("a1/0")


def test_application_policy_starts_every_role_again() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=1), RoleRule("b"))

    assert app.fails("a0") == ["stop a1", "stop b0"]
    assert app.ends("b0", ok=False) == []
    assert app.ends("a1", ok=False) == ["start a0#1", "start a1#1", "start b0#1"]


def test_what_had_succeeded_is_started_again_with_the_app() -> None:
    app = App.of(RoleRule("a", max_retries=1), RoleRule("b"))
    app.ends("b0")

    assert app.fails("a0") == ["start a0#1", "start b0#1"]
    assert app.ends("a0") == []
    assert app.ends("b0") == ["finish"]
    assert app.verdict == SUCCESS


def test_retries_of_the_application_are_used_up_by_whoever_fails() -> None:
    app = App.of(RoleRule("a", max_retries=2), RoleRule("b", max_retries=1))
    app.fails("a0")
    app.ends("b0")

    assert app.fails("b0") == ["stop a0"]
    assert app.ends("a0") == ["finish"]
    assert app.verdict == failed("b0/0")


@pytest.mark.parametrize("policy", [REPLICA, ROLE, APPLICATION])
def test_an_app_of_one_fails_after_its_last_retry(policy: RetryPolicy) -> None:
    app = App.of(RoleRule("a", max_retries=2, policy=policy))

    assert app.fails("a0") == ["start a0#1"]
    assert app.fails("a0") == ["start a0#2"]
    assert app.fails("a0") == ["finish"]
    assert (app.verdict, app.state.restarts) == (failed("a0/0"), 2)


def test_a_replica_is_started_again_only_when_all_its_ranks_are_down() -> None:
    app = App.of(RoleRule("a", ranks=3, max_retries=1, policy=REPLICA))

    assert app.fails("a0", 1) == ["stop a0"]
    assert app.fails("a0", 2) == []
    assert app.fails("a0", 0) == ["start a0#1"]
    assert app.state.restarts == 1


def test_two_ranks_that_fail_together_use_one_retry() -> None:
    app = App.of(RoleRule("a", ranks=2, max_retries=1, policy=REPLICA))
    app.fails("a0", 0)
    app.fails("a0", 1)

    assert app.fails("a0", 0) == ["stop a0"]
    assert app.fails("a0", 1) == ["finish"]
    assert app.state.restarts == 1


def test_a_replica_does_not_wait_for_another_that_is_slow_to_stop() -> None:
    app = App.of(RoleRule("a", replicas=2, ranks=2, max_retries=1, policy=REPLICA))
    app.fails("a0", 0)  # its rank 1 takes its time

    assert app.fails("a1", 0) == ["stop a1"]
    assert app.fails("a1", 1) == ["start a1#1"]
    assert app.fails("a0", 1) == ["start a0#1"]


def test_a_restart_of_the_application_takes_in_a_replica_that_waits_for_its_own() -> None:
    alone = RoleRule("a", ranks=2, max_retries=1, policy=REPLICA)
    app = App.of(alone, RoleRule("b", ranks=2, max_retries=1))
    assert app.fails("a0", 0) == ["stop a0"]

    assert app.fails("b0", 0) == ["stop b0"]  # a0 was told to stop already
    assert app.fails("a0", 1) == []
    assert app.fails("b0", 1) == ["start a0#1", "start b0#1"]
    assert app.state.restarts == 2


# Fewer replicas than asked for.


def test_a_role_goes_on_with_its_minimum_of_replicas() -> None:
    app = App.of(RoleRule("a", replicas=3, min_replicas=2))

    assert app.fails("a1") == []
    assert app.ends("a0") == []
    assert app.ends("a2") == ["finish"]
    assert app.verdict == SUCCESS


def test_below_its_minimum_the_app_fails_with_the_failure_that_was_too_much() -> None:
    app = App.of(RoleRule("a", replicas=3, min_replicas=2))
    app.fails("a1")

    assert app.fails("a0") == ["stop a2"]
    assert app.ends("a2") == ["finish"]
    assert app.verdict == failed("a0/0")


def test_retries_come_before_going_on_with_fewer() -> None:
    app = App.of(RoleRule("a", replicas=2, min_replicas=1, max_retries=1, policy=REPLICA))

    assert app.fails("a0") == ["start a0#1"]
    assert app.fails("a0") == []
    assert app.ends("a1") == ["finish"]
    assert app.verdict == SUCCESS


def test_a_tolerated_failure_still_stops_the_replicas_other_ranks() -> None:
    app = App.of(RoleRule("a", replicas=2, ranks=2, min_replicas=1))

    assert app.fails("a0", 0) == ["stop a0"]
    assert app.ends("a1", 0) == []
    assert app.ends("a1", 1) == []
    assert app.fails("a0", 1) == ["finish"]
    assert app.verdict == SUCCESS


def test_a_minimum_of_none_does_not_make_a_success_of_failures_alone() -> None:
    app = App.of(RoleRule("a", replicas=2, min_replicas=0))
    app.fails("a0")

    assert app.fails("a1") == ["finish"]
    assert app.verdict == failed("a1/0")


def test_a_tolerated_replica_comes_back_when_the_application_is_started_again() -> None:
    app = App.of(RoleRule("a", replicas=2, min_replicas=1), RoleRule("b", max_retries=1))
    app.fails("a1")

    assert app.fails("b0") == ["stop a0"]
    assert app.ends("a0") == ["start a0#1", "start a1#1", "start b0#1"]


# Somebody ends it.


def test_cancel_stops_what_is_up_and_the_app_ends_when_it_is_down() -> None:
    app = App.of(RoleRule("a", replicas=2), RoleRule("b"))
    app.ends("b0")

    assert app.is_cancelled() == ["stop a0", "stop a1"]
    assert app.fails("a0") == []
    assert app.ends("a1") == ["finish"]
    assert app.verdict == STOPPED


def test_cancel_before_the_start_ends_the_app_and_nothing_starts() -> None:
    app = App(initial([RoleRule("a", replicas=2)]))

    assert app.is_cancelled() == ["finish"]
    assert app.tell(Begin()) == []
    assert app.verdict == STOPPED


def test_a_second_cancel_changes_nothing() -> None:
    app = App.of(RoleRule("a"))
    app.is_cancelled()

    assert app.is_cancelled("somebody_else") == []
    assert app.fails("a0") == ["finish"]
    assert app.verdict == STOPPED


def test_cancel_while_restarting_starts_nothing_again() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=3))
    app.fails("a0")

    assert app.is_cancelled() == []  # a1 was told to stop already
    assert app.fails("a1") == ["finish"]
    assert app.verdict == STOPPED


def test_cancel_of_a_failing_app_leaves_the_failure_as_its_verdict() -> None:
    app = App.of(RoleRule("a", replicas=2))
    app.fails("a0")

    assert app.is_cancelled() == []
    assert app.ends("a1") == ["finish"]
    assert app.verdict == failed("a0/0")


def test_after_the_end_nothing_is_done_whatever_is_told() -> None:
    app = App.of(RoleRule("a", max_retries=3))
    app.ends("a0")

    assert app.is_cancelled() == []
    assert app.fails("a0") == []
    assert app.tell(StartFailed(key("a0"), "cannot_start")) == []
    assert app.tell(Begin()) == []


# What cannot start.


def test_a_replica_that_cannot_start_ends_the_app_and_uses_no_retry() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=3))

    assert app.tell(StartFailed(key("a0"), "cannot_start: nope")) == ["stop a1"]
    assert app.fails("a1") == ["finish"]
    assert (app.verdict, app.state.restarts) == (failed("cannot_start: nope"), 0)


def test_an_app_of_which_nothing_can_start_is_over_at_once() -> None:
    app = App.of(RoleRule("a"))

    assert app.tell(StartFailed(key("a0"), "cannot_start: nope")) == ["finish"]
    assert app.verdict == failed("cannot_start: nope")


def test_a_start_that_fails_on_a_retry_ends_the_app() -> None:
    app = App.of(RoleRule("a", replicas=2, max_retries=1))
    app.fails("a0")
    app.ends("a1")

    assert app.tell(StartFailed(key("a1"), "cannot_start: gone")) == ["stop a0"]
    assert app.ends("a0") == ["finish"]
    assert app.verdict == failed("cannot_start: gone")


# Ranks that were replaced one by one, until that could not go on.


def test_when_ranks_can_no_longer_be_replaced_all_start_again_as_after_any_failure() -> None:
    app = App.of(RoleRule("a", ranks=3, max_retries=1))

    gave_up = app.tell(LiveEnded("exit_signal_9_rank_1"))
    gone = app.fails("a0", 1)
    others = [app.fails("a0", 0), app.fails("a0", 2)]

    assert (gave_up, gone, others) == (["stop a0"], [], [[], ["start a0#1"]])
    assert app.state.restarts == 1


def test_without_retries_left_the_cause_for_which_live_ended_ends_the_app() -> None:
    app = App.of(RoleRule("a", ranks=2))

    app.tell(LiveEnded("exit_signal_9_rank_1"))
    app.fails("a0", 1)
    app.fails("a0", 0)

    assert app.verdict == failed("exit_signal_9_rank_1")


def test_it_is_one_failure_however_often_it_is_said_and_whatever_else_was() -> None:
    app = App.of(RoleRule("a", ranks=2, max_retries=5))

    app.fails("a0", 1)
    again = [app.tell(LiveEnded("x")), app.tell(LiveEnded("x"))]

    assert again == [[], []]
    assert app.state.restarts == 1


def test_a_node_that_was_lost_before_is_the_failure_and_no_second_one_follows() -> None:
    roles = [RoleRule("a", replicas=2, max_retries=1)]
    app = App(initial(roles, nodes=("n0", "n1", "n2")))
    app.tell(Begin())

    app.tell(NodeLost("n1", "gone"))
    app.tell(LiveEnded("node_lost_n1"))
    app.fails("a0")

    assert app.done == ["start a0#1", "start a1#1"]
    assert (app.state.restarts, app.state.seats[key("a1")]) == (1, "n2")
