from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.rules.devices import DeviceState, DRMap, GroupId, MappedRank, RankId
from torchloom.rules.response import (
    CollectiveFailed,
    DeviceReported,
    Drain,
    Effect,
    Fail,
    FailurePolicy,
    GiveUp,
    KillRank,
    LossNotFinite,
    LossRecovery,
    Mark,
    NodeFailed,
    Notify,
    OnLoss,
    RankFailed,
    RankGivenUp,
    RestartRanks,
    Shrink,
    Signal,
    State,
    step,
)

A0, A1, B0, B1 = (RankId("j", "trainer", rank) for rank in range(4))
OTHER = RankId("other", "trainer", 0)
GROUP_A, GROUP_B = GroupId("j", "A"), GroupId("j", "B")

SEED = DRMap().register(  # two replica groups, and another job that shares a device
    MappedRank(A0, frozenset({"gpu0"}), "A", "n0"),
    MappedRank(A1, frozenset({"gpu1"}), "A", "n1"),
    MappedRank(B0, frozenset({"gpu2"}), "B", "n0"),
    MappedRank(B1, frozenset({"gpu3"}), "B", "n1"),
    MappedRank(OTHER, frozenset({"gpu3"}), "", "n1"),
)
FAILED = DeviceReported("gpu3", DeviceState.FAILED, "xid 79")


def told(policy: FailurePolicy, signal: Signal) -> list[Effect]:
    return list(step(State(SEED, {"j": policy}), signal)[1])


def test_a_failed_device_takes_its_replica_group_and_the_other_job_and_nobody_else() -> None:
    why = "device_failed_gpu3"

    assert told(FailurePolicy(LossRecovery.LIVE), FAILED) == [
        Mark(B1, why),
        Mark(OTHER, why),
        KillRank(B0, why),
        KillRank(B1, why),
        RestartRanks("j", frozenset({B0, B1}), LossRecovery.LIVE, why),
        KillRank(OTHER, why),
        RestartRanks("other", frozenset({OTHER}), LossRecovery.RESTART, why),
    ]


def test_a_device_that_fails_twice_is_acted_on_once() -> None:
    state, _ = step(State(SEED), FAILED)

    again, effects = step(state, DeviceReported("gpu3", DeviceState.FAILED, "said again"))

    assert effects == ()
    assert again.drmap.health_of("gpu3").reason == "said again"


def test_an_unknown_device_is_marked_and_told_in_the_seeds_words() -> None:
    state, effects = step(State(SEED), DeviceReported("50", DeviceState.FAILED, "test"))

    words = "Device 50 not found in device-to-replicas map"
    assert effects == (Notify(None, "device_failed_50", words),)
    assert state.drmap.health_of("50").state is DeviceState.FAILED


def test_a_draining_device_kills_nobody() -> None:
    signal = DeviceReported("gpu3", DeviceState.DRAINING, "maintenance")

    assert told(FailurePolicy(), signal) == [
        Drain("j", frozenset({GROUP_B}), "device_draining_gpu3"),
        Drain("other", frozenset({GroupId("other", "trainer/0")}), "device_draining_gpu3"),
    ]


def test_a_device_that_is_well_again_is_only_told() -> None:
    state, _ = step(State(SEED), FAILED)

    _, effects = step(state, DeviceReported("gpu3", DeviceState.HEALTHY, "replaced"))

    assert effects == (Notify(None, "device_recovered_gpu3", "replaced"),)


def test_a_rank_that_ended_well_is_no_failure() -> None:
    assert told(FailurePolicy(), RankFailed(A0, 0)) == []


@pytest.mark.parametrize(
    ("recovery", "expected"),
    [
        (
            LossRecovery.LIVE,
            [KillRank(A1, "x"), RestartRanks("j", frozenset({A0, A1}), LossRecovery.LIVE, "x")],
        ),
        (LossRecovery.SHRINK, [KillRank(A1, "x"), Shrink("j", frozenset({GROUP_A}), "x")]),
        (
            LossRecovery.RESTART,
            [
                KillRank(
                    A1, "x"
                ),  # the others are ended in their grace, by whoever starts them again
                RestartRanks("j", frozenset({A0, A1, B0, B1}), LossRecovery.RESTART, "x"),
            ],
        ),
        (LossRecovery.FAIL, [*(KillRank(p, "x") for p in (A1, B0, B1)), Fail("j", "x")]),
    ],
)
def test_an_exit_is_answered_as_the_job_wishes(
    recovery: LossRecovery, expected: list[Effect]
) -> None:
    effects = told(FailurePolicy(recovery), RankFailed(A0, -9))

    assert effects[0] == Mark(A0, "exit_signal_9_rank_0")
    assert [_reasonless(effect) for effect in effects[1:]] == expected


def _reasonless(effect: Effect) -> Effect:
    assert effect.reason == "exit_signal_9_rank_0"
    return replace(effect, reason="x")


def test_a_hanging_rank_is_killed_with_its_group() -> None:
    effects = told(FailurePolicy(LossRecovery.LIVE), RankGivenUp(B0, "heartbeat_timeout_worker_2"))

    assert effects[1:3] == [
        KillRank(B0, "heartbeat_timeout_worker_2"),
        KillRank(B1, "heartbeat_timeout_worker_2"),
    ]


def test_nobody_on_a_lost_node_is_killed_but_their_partners_elsewhere_are() -> None:
    effects = told(FailurePolicy(), NodeFailed("n0"))

    assert [e for e in effects if isinstance(e, KillRank)] == [
        KillRank(A1, "node_lost_n0"),
        KillRank(B1, "node_lost_n0"),
    ]
    assert effects[-1].processes == {A0, A1, B0, B1}


def test_live_with_no_group_left_starts_all_again() -> None:
    effects = told(FailurePolicy(LossRecovery.LIVE), NodeFailed("n0"))

    assert effects[-1].recovery is LossRecovery.RESTART


def test_a_job_that_is_recovered_live_loses_only_the_rank_that_was_hit() -> None:
    why = "device_failed_gpu3"
    state = State(SEED, {"j": FailurePolicy(LossRecovery.LIVE)}, frozenset({"j"}))

    assert step(state, FAILED)[1] == (
        Mark(B1, why),
        Mark(OTHER, why),
        GiveUp(B1, why),
        KillRank(OTHER, why),
        RestartRanks("other", frozenset({OTHER}), LossRecovery.RESTART, why),
    )
    assert step(state, RankGivenUp(A0, "hang_rank_0"))[1] == (
        Mark(A0, "hang_rank_0"),
        GiveUp(A0, "hang_rank_0"),
    )
    assert step(state, RankFailed(A0, -9))[1] == (Mark(A0, "exit_signal_9_rank_0"),)


def test_a_job_that_no_longer_wants_it_is_not_recovered_live() -> None:
    state = State(SEED, {"j": FailurePolicy(LossRecovery.FAIL)}, frozenset({"j"}))

    effects = step(state, RankGivenUp(A0, "hang_rank_0"))[1]

    assert GiveUp(A0, "hang_rank_0") not in effects
    assert effects[-1] == Fail("j", "hang_rank_0")


def test_a_job_that_would_shrink_too_far_fails() -> None:
    effects = told(FailurePolicy(LossRecovery.SHRINK, min_groups=2), RankFailed(A0, 1))

    assert effects[-1] == Fail("j", "exit_code_1_rank_0")


def test_a_collective_error_alone_kills_nobody() -> None:
    assert told(FailurePolicy(), CollectiveFailed(A0, "connection closed by peer")) == [
        Mark(A0, "collective_error_rank_0"),
        Notify("j", "collective_error_rank_0", "connection closed by peer"),
    ]


@pytest.mark.parametrize("wish", OnLoss)
def test_a_loss_that_is_not_finite_is_answered_as_the_job_wishes(wish: OnLoss) -> None:
    effects = told(FailurePolicy(on_loss=wish), LossNotFinite(B1, 412))

    reason = "loss_not_finite_rank_3"
    last = {
        OnLoss.NOTIFY: Notify("j", reason, "the loss of rank 3 is not finite"),
        OnLoss.RESTART: RestartRanks(
            "j", frozenset({A0, A1, B0, B1}), LossRecovery.RESTART, reason
        ),
        OnLoss.FAIL: Fail("j", reason),
    }
    assert effects[-1] == last[wish]
    assert sum(isinstance(e, KillRank) for e in effects) == (0 if wish is OnLoss.NOTIFY else 4)


registered = st.lists(
    st.builds(
        MappedRank,
        st.builds(RankId, st.sampled_from("jk"), st.just("r"), st.integers(0, 7)),
        st.frozensets(st.sampled_from("abcd"), max_size=2),
        st.sampled_from(["", "A", "B", "C"]),
        st.sampled_from(["n0", "n1", "n2"]),
    ),
    unique_by=lambda process: process.id,
    max_size=12,
)


@given(registered, st.sampled_from("abcd"), st.sampled_from(LossRecovery))
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
def test_exactly_the_right_ones_are_acted_on(
    known: list[MappedRank], device: str, recovery: LossRecovery
) -> None:
    state = State(DRMap().register(*known), dict.fromkeys("jk", FailurePolicy(recovery)))

    _, effects = step(state, DeviceReported(device, DeviceState.FAILED, "why"))

    users = {p.id for p in known if device in p.devices}
    assert {e.process for e in effects if isinstance(e, Mark)} == users
    killed = {e.process for e in effects if isinstance(e, KillRank)}
    for job in "jk":
        own = {p.id for p in known if p.id.job == job}
        hit = {p.group for p in known if p.id in users & own}
        partners = {p.id for p in known if p.group in hit}
        has_others = partners != own
        is_partial = recovery is not LossRecovery.FAIL and (
            recovery is not LossRecovery.SHRINK or has_others
        )
        expected = (partners if is_partial else own) if hit else set()
        assert killed & own == expected
        ends = [e for e in effects if isinstance(e, RestartRanks | Shrink | Fail) and e.job == job]
        assert len(ends) == bool(hit)
