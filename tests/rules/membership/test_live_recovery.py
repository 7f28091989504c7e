"""A rank dies and the others do not: what is decided, step by step."""

import json
from dataclasses import replace

import pytest

from torchloom.rules.membership.election import (
    Cause,
    GenerationPlan,
    Holding,
    MemberPosition,
    RecoveryLimits,
    RecoveryMode,
    StateOrigin,
    StateTransfer,
    What,
)
from torchloom.rules.membership.events import (
    Arrived,
    Began,
    Broke,
    Commit,
    EndGeneration,
    Event,
    Exited,
    FailJob,
    Finished,
    Fork,
    GivenUp,
    Go,
    Kill,
    LetStand,
    MakeStore,
    MemberNodeLost,
    NotifyMembers,
    Order,
    Refused,
    Registered,
    Release,
    Restart,
    Restored,
    Seal,
    Sealed,
    Started,
    StoreLost,
    StoreMade,
    Tick,
    Told,
    Transfer,
)
from torchloom.rules.membership.generation import (
    GenerationPhase,
    State,
    StoreGeneration,
    due,
    record_from_dict,
    record_to_dict,
)
from torchloom.rules.membership.live_recovery import begin, is_quiet, restore, step, trains
from torchloom.rules.membership.seats import MemberProcess, MemberSeat

A, B = MemberProcess(0, 1, "a"), MemberProcess(1, 1, "b")
NEW = MemberProcess(1, 2, "b")
PAGES = frozenset({7, 8, 9})


def job(holding: Holding = Holding.REPLICATED, **limits: float) -> State:
    return begin(holding, ("a", "b"), {"a": 1, "b": 1}, replace(RecoveryLimits(), **limits))  # type: ignore[arg-type]


def after(state: State, *events: Event) -> State:
    for event in events:
        state, _ = step(state, event)
    return state


def said(state: State, event: Event) -> tuple[list[Told], list[Order]]:
    """Return what an event has told, and what it has ordered."""
    _, effects = step(state, event)
    told = [one for effect in effects if isinstance(effect, StoreGeneration) for one in effect.told]
    return told, [effect for effect in effects if not isinstance(effect, StoreGeneration)]


def arrive(who: MemberProcess, generation: int, applied: int | None) -> Arrived:
    return Arrived(who, generation, MemberPosition(applied, PAGES))


def ready(generation: int) -> tuple[Event, ...]:
    return StoreMade(generation), Sealed(generation, None)


def training(state: State | None = None) -> State:
    """Return a job of two ranks that trains for the first time."""
    state = after(state or job(), *ready(0), arrive(A, 0, None), arrive(B, 0, None))
    return after(state, Restored(A, 0), Restored(B, 0), Started(A, 0), Started(B, 0))


def gathered() -> State:
    """Return it when rank 1 was lost and replaced, and everybody is about to meet."""
    return after(training(), Exited(B, -9, 9), StoreMade(1), arrive(A, 1, 9))


PLAN = GenerationPlan(
    9,
    StateOrigin.PEER,
    (
        StateTransfer(1, What.STATE, 9, 0),
        StateTransfer(0, What.PAGE, 8, 0),
        StateTransfer(1, What.PAGE, 8, 1),
    ),
)


def test_a_job_trains_when_all_have_come_and_have_what_they_need() -> None:
    state = training()

    record = state.record
    assert (record.phase, record.generation, record.attempt) == (GenerationPhase.TRAINING, 0, 1)
    assert record.plan == GenerationPlan(0, StateOrigin.SCRATCH)
    assert due(state) == ()


def test_a_death_ends_the_generation_and_orders_a_newcomer() -> None:
    told, orders = said(training(), Exited(B, -9))

    assert told == [Began(1, RecoveryMode.LIVE, "exit_signal_9_rank_1")]
    assert orders == [
        MakeStore("a", 1),
        Seal(1),
        NotifyMembers(A, 1),
        Fork(NEW, 1, RecoveryMode.LIVE),
        NotifyMembers(NEW, 1),
    ]


def test_all_are_given_what_they_need_when_all_have_arrived() -> None:
    told, orders = said(gathered(), arrive(NEW, 1, None))

    assert told == []
    assert orders == [Transfer(A, 1, PLAN), Transfer(NEW, 1, PLAN)]


def test_a_newcomer_counts_only_when_it_has_all_it_needs() -> None:
    moving = after(gathered(), arrive(NEW, 1, None), Restored(A, 1))

    told, orders = said(moving, Restored(NEW, 1))

    assert moving.record.phase is GenerationPhase.MOVING
    assert told == [Commit(1, PLAN)]
    assert orders == [Go(A, 1, 9), Go(NEW, 1, 9)]


def test_an_ack_that_comes_twice_is_one() -> None:
    moving = after(gathered(), arrive(NEW, 1, None))

    assert after(moving, *[Restored(A, 1)] * 3).record.phase is GenerationPhase.MOVING


def test_a_death_during_a_recovery_is_one_more_generation() -> None:
    moving = after(gathered(), arrive(NEW, 1, None))
    third = MemberProcess(1, 3, "b")

    told, orders = said(moving, Exited(NEW, -9))

    assert told == [Began(2, RecoveryMode.LIVE, "exit_signal_9_rank_1")]
    assert Fork(third, 2, RecoveryMode.LIVE) in orders
    assert NotifyMembers(A, 2) in orders


def test_when_nobody_is_left_all_start_again_from_the_newest_there_is() -> None:
    state = after(training(), Exited(B, -9, 9))

    told, orders = said(state, Exited(A, -9, 9))

    assert told == [Restart(2, 2, Cause.NO_SURVIVOR, None)]
    assert Fork(MemberProcess(0, 2, "a"), 2, RecoveryMode.RESTART) in orders
    assert Kill(NEW, "exit_signal_9_rank_1") in orders


def test_who_does_not_come_in_time_is_not_waited_for() -> None:
    state = after(gathered(), *(Tick(float(second)) for second in range(60)))

    told, _ = said(after(state, Tick(60.0)), Tick(61.0))

    assert said(state, Tick(60.0))[0] == []
    assert told == [Restart(2, 2, Cause.LIVE_WAIT, None)]


def test_time_in_which_nobody_looked_does_not_count() -> None:
    state = after(gathered(), Tick(0.0), Tick(500.0))

    assert state.record.mode is RecoveryMode.LIVE


def test_restarts_that_get_nowhere_end_the_job_with_its_first_error() -> None:
    state = after(training(), Exited(B, -11, 9), Exited(A, -9, 9))
    state = after(state, *(Exited(MemberProcess(0, life, "a"), 1) for life in (2, 3)))

    told, orders = said(state, Exited(MemberProcess(0, 4, "a"), 1))

    assert told == [FailJob("exit_signal_11_rank_1", Cause.DIED)]
    assert orders == [Kill(NEW, "exit_signal_11_rank_1")]


def test_a_newcomer_that_cannot_start_is_tried_so_many_times() -> None:
    state = training(job(tries=2))
    state = after(state, Exited(B, -9), Exited(NEW, 1))

    told, _ = said(state, Exited(MemberProcess(1, 3, "b"), 1))

    assert told == [Restart(3, 2, Cause.TRIES, None)]


def test_a_rank_that_dies_again_and_again_in_one_step_is_not_repeated_for_ever() -> None:
    state, causes = training(job(repeats=2)), []
    for generation in range(1, 4):
        seat = state.record.seats[1]
        state = after(
            state, Exited(seat.who, 1, 9), StoreMade(generation), arrive(A, generation, 9)
        )
        newcomer = state.record.seats[1].who
        told, _ = said(state, arrive(newcomer, generation, None))
        causes += [one.cause for one in told if isinstance(one, Restart)]
        members = (Restored(A, generation), Restored(newcomer, generation))
        state = after(state, arrive(newcomer, generation, None), *members)

    assert causes == [Cause.REPEATS]


def test_a_broken_collective_waits_for_the_death_that_explains_it() -> None:
    state = after(training(), Tick(1.0), Broke(A, 0, is_collective=True), Tick(1.9))

    told, _ = said(state, Exited(B, -9))

    assert state.record.generation == 0
    assert told == [Began(1, RecoveryMode.LIVE, "exit_signal_9_rank_1")]


def test_with_nobody_gone_the_same_members_meet_again() -> None:
    state = after(training(), Tick(1.0), Broke(A, 0, is_collective=True))

    told, orders = said(state, Tick(2.0))

    assert told == [Began(1, RecoveryMode.LIVE, "collective_error_rank_0")]
    assert [order for order in orders if isinstance(order, NotifyMembers | Fork | Kill)] == [
        NotifyMembers(A, 1),
        NotifyMembers(B, 1),
    ]


def test_an_exception_of_the_program_lets_the_generation_stand() -> None:
    assert said(training(), Broke(A, 0, is_collective=False)) == ([], [LetStand(A, 0)])


def test_a_step_that_breaks_again_with_nobody_gone_is_the_programs_fault() -> None:
    state = training(job(reforms=1))
    state = after(state, Tick(1.0), Broke(A, 0, is_collective=True), Tick(2.0))
    state = after(state, StoreMade(1), arrive(A, 1, 0), arrive(B, 1, 0))
    state = after(state, Restored(A, 1), Restored(B, 1))

    assert said(state, Broke(A, 1, is_collective=True)) == ([], [LetStand(A, 1)])


def test_a_rank_that_hangs_is_ended_and_replaced_when_it_has_ended() -> None:
    state = training()

    told, orders = said(state, GivenUp(B, "hang_rank_1"))
    later = said(after(state, GivenUp(B, "hang_rank_1")), Exited(B, -9))

    assert told == [Began(1, RecoveryMode.LIVE, "hang_rank_1")]
    assert orders == [Kill(B, "hang_rank_1"), MakeStore("a", 1), Seal(1), NotifyMembers(A, 1)]
    assert later[0] == []
    assert Fork(NEW, 1, RecoveryMode.LIVE) in later[1]


def test_what_ran_on_a_lost_node_is_ended_when_the_node_is_heard_again() -> None:
    state = after(training(), MemberNodeLost("b"))

    told, orders = said(state, Registered("b", (B,)))

    assert state.record.seats[1] == MemberSeat(1, "", life=2, is_new=True)
    assert told == []
    assert Fork(MemberProcess(1, 3, "b"), 1, RecoveryMode.LIVE) in orders
    assert Kill(B, "of an older generation") in orders


def test_a_node_with_another_keeper_has_lost_all_it_had() -> None:
    told, orders = said(training(), Registered("b", (), is_fresh=True))

    assert told == [Began(1, RecoveryMode.LIVE, "node_lost_b")]
    assert Fork(NEW, 1, RecoveryMode.LIVE) in orders


def test_what_a_new_keeper_has_started_itself_is_not_lost() -> None:
    assert said(training(), Registered("b", (B,), is_fresh=True)) == ([], [])


@pytest.mark.parametrize(
    "word", [Arrived(B, 0, MemberPosition(3)), Restored(B, 0), Broke(B, 0, True)]
)
def test_a_process_without_a_seat_is_told_to_end(word: Event) -> None:
    state = after(training(), Exited(B, -9))

    assert said(state, word) == ([], [Kill(B, "of an older generation")])


def test_a_member_that_is_behind_is_told_what_it_is_to_do() -> None:
    assert said(gathered(), Finished(A, 0)) == ([], [NotifyMembers(A, 1)])


def test_a_member_that_cannot_take_its_state_has_all_meet_again() -> None:
    moving = after(gathered(), arrive(NEW, 1, None))

    assert said(moving, Refused(NEW, 1, "hash"))[0] == [
        Began(2, RecoveryMode.LIVE, "refused_rank_1")
    ]


def test_a_page_that_was_lost_is_remembered_until_all_go_back_to_before() -> None:
    moving = after(gathered(), Arrived(NEW, 1, MemberPosition()))
    again = after(moving, Refused(NEW, 1, "hash"), StoreMade(2), arrive(A, 2, 9))
    again = after(again, arrive(NEW, 2, 9), Restored(A, 2))

    assert said(again, Restored(NEW, 2))[0] == [Commit(2, again.record.plan, inexact=(1,))]  # type: ignore[arg-type]


def test_going_back_to_before_a_page_was_lost_makes_a_run_exact_again() -> None:
    state = after(gathered(), Arrived(NEW, 1, MemberPosition()), Restored(A, 1), Restored(NEW, 1))
    state = after(state, Exited(A, -9, 9), Exited(NEW, -9, 9), *ready(3))
    seats = state.record.seats
    state = after(state, *(Exited(seat.who, -9) for seat in seats if seat.is_ending))
    lives = [seat.who for seat in state.record.seats]

    state = after(state, *(arrive(who, 3, None) for who in lives))

    assert (state.record.plan, state.record.inexact) == (GenerationPlan(0, StateOrigin.SCRATCH), ())


def test_a_death_explains_the_collective_that_broke_before_it() -> None:
    state = after(training(), Tick(1.0), Broke(A, 0, is_collective=True), Tick(2.0))

    assert state.record.reason == "collective_error_rank_0"
    assert after(state, Exited(B, -9)).record.reason == "exit_signal_9_rank_1"


def test_a_job_is_complete_when_all_have_finished() -> None:
    state = after(training(), Finished(A, 0))

    told, orders = said(state, Finished(B, 0))
    late = said(after(state, Finished(B, 0)), Finished(A, 0))

    assert (told, orders) == ([EndGeneration()], [Release(A, 0), Release(B, 0)])
    assert late == ([], [Release(A, 0)])


def test_live_cannot_bring_back_a_member_whose_program_has_ended() -> None:
    state = after(training(), Exited(B, 0))

    assert said(state, Exited(A, -9))[0] == [Restart(1, 2, Cause.LEFT, None)]


@pytest.mark.parametrize(
    "state",
    [training(), gathered(), after(gathered(), arrive(NEW, 1, None)), after(job(), Tick(1.0))],
    ids=["training", "gathered", "moving", "begun"],
)
def test_a_new_weaver_says_all_that_has_no_answer_as_it_knows_it(state: State) -> None:
    stored = record_from_dict(json.loads(json.dumps(record_to_dict(state.record))))

    again = restore(state, stored, now=99.0)

    assert stored == state.record
    assert set(due(state)) <= set(due(again))
    assert step(again, Tick(99.6))[1] == due(again)


def test_what_has_no_answer_is_said_again_after_a_while_only() -> None:
    state = after(gathered(), Tick(0.1))

    assert step(state, Tick(0.2))[1] == ()
    assert Fork(NEW, 1, RecoveryMode.LIVE) in step(state, Tick(0.7))[1]


def test_a_store_that_is_lost_is_made_again_for_the_next_generation() -> None:
    again = restore(training(), training().record, now=1.0)

    told, orders = said(again, StoreLost(0))

    assert told == [Began(1, RecoveryMode.LIVE, "store_lost")]
    assert MakeStore("a", 1) in orders
    assert said(after(again, StoreLost(0)), StoreLost(1)) == ([], [])


def test_sharded_state_waits_until_no_older_checkpoint_can_come() -> None:
    state = training(job(Holding.SHARDED))
    copies = frozenset({(0, 4), (1, 4)})
    state = after(
        state, Exited(B, -9), StoreMade(1), Arrived(A, 1, MemberPosition(9, copies=copies))
    )
    state = after(state, Arrived(NEW, 1, MemberPosition()))

    assert state.record.phase is GenerationPhase.GATHERING
    assert after(state, Sealed(1, 3)).record.plan == GenerationPlan(
        4,
        StateOrigin.MEMORY,
        (StateTransfer(0, What.COPY, 4, 0), StateTransfer(1, What.COPY, 4, 0)),
    )
    assert said(state, Sealed(1, 6))[0] == [Restart(2, 2, Cause.NO_COPY, 6)]


def watched() -> State:
    """Return two ranks that train already, from step 4 on, in generation 3 of attempt 2."""
    room = {"a": 1, "b": 1}
    return trains(Holding.REPLICATED, (B, A), room, 3, 2, 4, RecoveryLimits())


def test_a_job_that_trains_already_is_quiet_until_it_loses_somebody() -> None:
    state = watched()

    assert [seat.who for seat in state.record.seats] == [A, B]
    assert is_quiet(state)
    told, orders = said(state, Exited(B, -9, 9))
    assert told == [Began(4, RecoveryMode.LIVE, "exit_signal_9_rank_1")]
    fork, notify = Fork(NEW, 4, RecoveryMode.LIVE), NotifyMembers(A, 4)
    assert orders == [MakeStore("a", 4), Seal(4), notify, fork, NotifyMembers(NEW, 4)]


def test_the_next_weaver_asks_whether_those_who_trained_still_do() -> None:
    state = watched()

    later = restore(
        state, record_from_dict(json.loads(json.dumps(record_to_dict(state.record)))), 9.0
    )

    assert not is_quiet(later)
    assert due(later) == (Go(A, 3, 4), Go(B, 3, 4))
    assert is_quiet(after(later, Started(A, 3), Started(B, 3)))


def test_what_waits_for_time_is_not_quiet() -> None:
    state = watched()

    assert not is_quiet(after(state, Broke(A, 3, is_collective=True)))
    assert not is_quiet(after(state, Exited(B, -9, 9)))
    assert is_quiet(after(state, Finished(A, 3), Finished(B, 3)))
