"""A rank dies and the others do not: what is decided, step by step."""

import json
from dataclasses import replace

import pytest

from torchloom.messages.base import NO_RANK, VERSION, Head
from torchloom.messages.membership import (
    Arrived,
    Broke,
    EndProcess,
    Finished,
    Fork,
    Given,
    Go,
    JoinGeneration,
    LetStand,
    MakeStore,
    NotRestored,
    Release,
    Restored,
    Training,
    Transfer,
)
from torchloom.rules.membership.election import (
    Cause,
    GenerationPlan,
    Holding,
    RecoveryLimits,
    RecoveryMode,
    StateOrigin,
    What,
)
from torchloom.rules.membership.events import (
    Event,
    Exited,
    GenerationBegan,
    GenerationChange,
    GenerationCommitted,
    GivenUp,
    JobCompleted,
    JobFailed,
    MemberNodeLost,
    MemberReport,
    Order,
    Registered,
    RestartBegan,
    Seal,
    Sealed,
    Send,
    StoreLost,
    StoreMade,
    Tick,
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
PAGES = (7, 8, 9)
OLDER = "of an older generation"


def head(generation: int, rank: int = NO_RANK) -> Head:
    return Head(VERSION, "", generation, rank, "")


# What members report.


def restored(who: MemberProcess, generation: int) -> MemberReport:
    return MemberReport(who, Restored(head(generation, who.rank)))


def not_restored(who: MemberProcess, generation: int) -> MemberReport:
    return MemberReport(who, NotRestored(head(generation, who.rank), "hash"))


def started(who: MemberProcess, generation: int) -> MemberReport:
    return MemberReport(who, Training(head(generation, who.rank), 0))


def finished(who: MemberProcess, generation: int) -> MemberReport:
    return MemberReport(who, Finished(head(generation, who.rank), 9))


def broke(who: MemberProcess, generation: int, is_collective: bool) -> MemberReport:
    return MemberReport(who, Broke(head(generation, who.rank), 9, is_collective))


def arrive(
    who: MemberProcess,
    generation: int,
    applied: int | None,
    pages: tuple[int, ...] = PAGES,
    copies: frozenset[tuple[int, int]] = frozenset(),
) -> MemberReport:
    return MemberReport(who, Arrived(head(generation, who.rank), applied, pages), copies)


# What they and their launch process are sent.


def make_store(generation: int, attempt: int = 1) -> Send:
    return Send(A, MakeStore(head(generation), 0, attempt, "a"))


def join(who: MemberProcess, generation: int) -> Send:
    return Send(who, JoinGeneration(head(generation, who.rank), 0))


def fork(who: MemberProcess, generation: int, attempt: int = 1) -> Send:
    return Send(who, Fork(head(generation), 0, attempt, who.rank, who.life, who.node))


def end(who: MemberProcess, reason: str, attempt: int = 1) -> Send:
    return Send(who, EndProcess(head(-1), 0, attempt, who.rank, who.life, reason))


def transfer(who: MemberProcess, generation: int, plan: GenerationPlan) -> Send:
    message = Transfer(head(generation, who.rank), 0, "", plan.start, plan.moves, ("a", "b"))
    return Send(who, message)


def go(who: MemberProcess, generation: int, start: int) -> Send:
    return Send(who, Go(head(generation, who.rank), 0, start))


def let_stand(who: MemberProcess, generation: int) -> Send:
    return Send(who, LetStand(head(generation, who.rank), 0))


def release(who: MemberProcess, generation: int) -> Send:
    return Send(who, Release(head(generation, who.rank), 0))


def job(holding: Holding = Holding.REPLICATED, **limits: float) -> State:
    return begin(holding, ("a", "b"), {"a": 1, "b": 1}, replace(RecoveryLimits(), **limits))  # type: ignore[arg-type]


def after(state: State, *events: Event) -> State:
    for event in events:
        state, _ = step(state, event)
    return state


def said(state: State, event: Event) -> tuple[list[GenerationChange], list[Order]]:
    """Return what an event has told, and what it has ordered."""
    _, effects = step(state, event)
    told = [
        one for effect in effects if isinstance(effect, StoreGeneration) for one in effect.changes
    ]
    return told, [effect for effect in effects if not isinstance(effect, StoreGeneration)]


def ready(generation: int) -> tuple[Event, ...]:
    return StoreMade(generation), Sealed(generation, None)


def training(state: State | None = None) -> State:
    """Return a job of two ranks that trains for the first time."""
    state = after(state or job(), *ready(0), arrive(A, 0, None), arrive(B, 0, None))
    return after(state, restored(A, 0), restored(B, 0), started(A, 0), started(B, 0))


def gathered() -> State:
    """Return it when rank 1 was lost and replaced, and everybody is about to meet."""
    return after(training(), Exited(B, -9, 9), StoreMade(1), arrive(A, 1, 9))


PLAN = GenerationPlan(
    9,
    StateOrigin.PEER,
    (
        Given(1, What.STATE, 9, 0),
        Given(0, What.PAGE, 8, 0),
        Given(1, What.PAGE, 8, 1),
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

    assert told == [GenerationBegan(1, RecoveryMode.LIVE, "exit_signal_9_rank_1")]
    assert orders == [
        make_store(1),
        Seal(1),
        join(A, 1),
        fork(NEW, 1),
        join(NEW, 1),
    ]


def test_all_are_given_what_they_need_when_all_have_arrived() -> None:
    told, orders = said(gathered(), arrive(NEW, 1, None))

    assert told == []
    assert orders == [transfer(A, 1, PLAN), transfer(NEW, 1, PLAN)]


def test_a_newcomer_counts_only_when_it_has_all_it_needs() -> None:
    moving = after(gathered(), arrive(NEW, 1, None), restored(A, 1))

    told, orders = said(moving, restored(NEW, 1))

    assert moving.record.phase is GenerationPhase.MOVING
    assert told == [GenerationCommitted(1, PLAN)]
    assert orders == [go(A, 1, 9), go(NEW, 1, 9)]


def test_an_ack_that_comes_twice_is_one() -> None:
    moving = after(gathered(), arrive(NEW, 1, None))

    assert after(moving, *[restored(A, 1)] * 3).record.phase is GenerationPhase.MOVING


def test_a_death_during_a_recovery_is_one_more_generation() -> None:
    moving = after(gathered(), arrive(NEW, 1, None))
    third = MemberProcess(1, 3, "b")

    told, orders = said(moving, Exited(NEW, -9))

    assert told == [GenerationBegan(2, RecoveryMode.LIVE, "exit_signal_9_rank_1")]
    assert fork(third, 2) in orders
    assert join(A, 2) in orders


def test_when_nobody_is_left_all_start_again_from_the_newest_there_is() -> None:
    state = after(training(), Exited(B, -9, 9))

    told, orders = said(state, Exited(A, -9, 9))

    assert told == [RestartBegan(2, 2, Cause.NO_SURVIVOR, None)]
    assert fork(MemberProcess(0, 2, "a"), 2, attempt=2) in orders
    assert end(NEW, "exit_signal_9_rank_1", attempt=2) in orders


def test_who_does_not_come_in_time_is_not_waited_for() -> None:
    state = after(gathered(), *(Tick(float(second)) for second in range(60)))

    told, _ = said(after(state, Tick(60.0)), Tick(61.0))

    assert said(state, Tick(60.0))[0] == []
    assert told == [RestartBegan(2, 2, Cause.LIVE_WAIT, None)]


def test_time_in_which_nobody_looked_does_not_count() -> None:
    state = after(gathered(), Tick(0.0), Tick(500.0))

    assert state.record.mode is RecoveryMode.LIVE


def test_restarts_that_get_nowhere_end_the_job_with_its_first_error() -> None:
    state = after(training(), Exited(B, -11, 9), Exited(A, -9, 9))
    state = after(state, *(Exited(MemberProcess(0, life, "a"), 1) for life in (2, 3)))

    told, orders = said(state, Exited(MemberProcess(0, 4, "a"), 1))

    assert told == [JobFailed("exit_signal_11_rank_1", Cause.DIED)]
    assert orders == [end(NEW, "exit_signal_11_rank_1", attempt=4)]


def test_a_newcomer_that_cannot_start_is_tried_so_many_times() -> None:
    state = training(job(tries=2))
    state = after(state, Exited(B, -9), Exited(NEW, 1))

    told, _ = said(state, Exited(MemberProcess(1, 3, "b"), 1))

    assert told == [RestartBegan(3, 2, Cause.TRIES, None)]


def test_a_rank_that_dies_again_and_again_in_one_step_is_not_repeated_for_ever() -> None:
    state, causes = training(job(repeats=2)), []
    for generation in range(1, 4):
        seat = state.record.seats[1]
        state = after(
            state, Exited(seat.who, 1, 9), StoreMade(generation), arrive(A, generation, 9)
        )
        newcomer = state.record.seats[1].who
        told, _ = said(state, arrive(newcomer, generation, None))
        causes += [one.cause for one in told if isinstance(one, RestartBegan)]
        members = (restored(A, generation), restored(newcomer, generation))
        state = after(state, arrive(newcomer, generation, None), *members)

    assert causes == [Cause.REPEATS]


def test_a_broken_collective_waits_for_the_death_that_explains_it() -> None:
    state = after(training(), Tick(1.0), broke(A, 0, is_collective=True), Tick(1.9))

    told, _ = said(state, Exited(B, -9))

    assert state.record.generation == 0
    assert told == [GenerationBegan(1, RecoveryMode.LIVE, "exit_signal_9_rank_1")]


def test_with_nobody_gone_the_same_members_meet_again() -> None:
    state = after(training(), Tick(1.0), broke(A, 0, is_collective=True))

    told, orders = said(state, Tick(2.0))

    assert told == [GenerationBegan(1, RecoveryMode.LIVE, "collective_error_rank_0")]
    assert orders == [make_store(1), Seal(1), join(A, 1), join(B, 1)]


def test_an_exception_of_the_program_lets_the_generation_stand() -> None:
    assert said(training(), broke(A, 0, is_collective=False)) == ([], [let_stand(A, 0)])


def test_a_step_that_breaks_again_with_nobody_gone_is_the_programs_fault() -> None:
    state = training(job(reforms=1))
    state = after(state, Tick(1.0), broke(A, 0, is_collective=True), Tick(2.0))
    state = after(state, StoreMade(1), arrive(A, 1, 0), arrive(B, 1, 0))
    state = after(state, restored(A, 1), restored(B, 1))

    assert said(state, broke(A, 1, is_collective=True)) == ([], [let_stand(A, 1)])


def test_a_rank_that_hangs_is_ended_and_replaced_when_it_has_ended() -> None:
    state = training()

    told, orders = said(state, GivenUp(B, "hang_rank_1"))
    later = said(after(state, GivenUp(B, "hang_rank_1")), Exited(B, -9))

    assert told == [GenerationBegan(1, RecoveryMode.LIVE, "hang_rank_1")]
    assert orders == [end(B, "hang_rank_1"), make_store(1), Seal(1), join(A, 1)]
    assert later[0] == []
    assert fork(NEW, 1) in later[1]


def test_what_ran_on_a_lost_node_is_ended_when_the_node_is_heard_again() -> None:
    state = after(training(), MemberNodeLost("b"))

    told, orders = said(state, Registered("b", (B,)))

    assert state.record.seats[1] == MemberSeat(1, "", life=2, is_new=True)
    assert told == []
    assert fork(MemberProcess(1, 3, "b"), 1) in orders
    assert end(B, OLDER) in orders


def test_a_node_with_another_keeper_has_lost_all_it_had() -> None:
    told, orders = said(training(), Registered("b", (), is_fresh=True))

    assert told == [GenerationBegan(1, RecoveryMode.LIVE, "node_lost_b")]
    assert fork(NEW, 1) in orders


def test_what_a_new_keeper_has_started_itself_is_not_lost() -> None:
    assert said(training(), Registered("b", (B,), is_fresh=True)) == ([], [])


@pytest.mark.parametrize("word", [arrive(B, 0, 3), restored(B, 0), broke(B, 0, True)])
def test_a_process_without_a_seat_is_told_to_end(word: Event) -> None:
    state = after(training(), Exited(B, -9))

    assert said(state, word) == ([], [end(B, OLDER)])


def test_a_member_that_is_behind_is_told_what_it_is_to_do() -> None:
    assert said(gathered(), finished(A, 0)) == ([], [join(A, 1)])


def test_a_member_that_cannot_take_its_state_has_all_meet_again() -> None:
    moving = after(gathered(), arrive(NEW, 1, None))

    assert said(moving, not_restored(NEW, 1))[0] == [
        GenerationBegan(2, RecoveryMode.LIVE, "refused_rank_1")
    ]


def test_a_page_that_was_lost_is_remembered_until_all_go_back_to_before() -> None:
    moving = after(gathered(), arrive(NEW, 1, None, ()))
    again = after(moving, not_restored(NEW, 1), StoreMade(2), arrive(A, 2, 9))
    again = after(again, arrive(NEW, 2, 9), restored(A, 2))

    assert said(again, restored(NEW, 2))[0] == [
        GenerationCommitted(2, again.record.plan, inexact=(1,))
    ]  # type: ignore[arg-type]


def test_going_back_to_before_a_page_was_lost_makes_a_run_exact_again() -> None:
    state = after(gathered(), arrive(NEW, 1, None, ()), restored(A, 1), restored(NEW, 1))
    state = after(state, Exited(A, -9, 9), Exited(NEW, -9, 9), *ready(3))
    seats = state.record.seats
    state = after(state, *(Exited(seat.who, -9) for seat in seats if seat.is_ending))
    lives = [seat.who for seat in state.record.seats]

    state = after(state, *(arrive(who, 3, None) for who in lives))

    assert (state.record.plan, state.record.inexact) == (GenerationPlan(0, StateOrigin.SCRATCH), ())


def test_a_death_explains_the_collective_that_broke_before_it() -> None:
    state = after(training(), Tick(1.0), broke(A, 0, is_collective=True), Tick(2.0))

    assert state.record.reason == "collective_error_rank_0"
    assert after(state, Exited(B, -9)).record.reason == "exit_signal_9_rank_1"


def test_a_job_is_complete_when_all_have_finished() -> None:
    state = after(training(), finished(A, 0))

    told, orders = said(state, finished(B, 0))
    late = said(after(state, finished(B, 0)), finished(A, 0))

    assert (told, orders) == ([JobCompleted()], [release(A, 0), release(B, 0)])
    assert late == ([], [release(A, 0)])


def test_live_cannot_bring_back_a_member_whose_program_has_ended() -> None:
    state = after(training(), Exited(B, 0))

    assert said(state, Exited(A, -9))[0] == [RestartBegan(1, 2, Cause.LEFT, None)]


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


def test_a_plan_is_stored_with_the_keys_that_other_versions_read() -> None:
    record = after(gathered(), arrive(NEW, 1, None)).record

    assert json.loads(json.dumps(record_to_dict(record)))["plan"] == {
        "start": 9,
        "origin": "peer",
        "moves": [
            {"target": 1, "what": "state", "step": 9, "source": 0},
            {"target": 0, "what": "page", "step": 8, "source": 0},
            {"target": 1, "what": "page", "step": 8, "source": 1},
        ],
        "inexact": [],
    }


def test_what_has_no_answer_is_said_again_after_a_while_only() -> None:
    state = after(gathered(), Tick(0.1))

    assert step(state, Tick(0.2))[1] == ()
    assert fork(NEW, 1) in step(state, Tick(0.7))[1]


def test_a_store_that_is_lost_is_made_again_for_the_next_generation() -> None:
    again = restore(training(), training().record, now=1.0)

    told, orders = said(again, StoreLost(0))

    assert told == [GenerationBegan(1, RecoveryMode.LIVE, "store_lost")]
    assert make_store(1) in orders
    assert said(after(again, StoreLost(0)), StoreLost(1)) == ([], [])


def test_sharded_state_waits_until_no_older_checkpoint_can_come() -> None:
    state = training(job(Holding.SHARDED))
    copies = frozenset({(0, 4), (1, 4)})
    state = after(state, Exited(B, -9), StoreMade(1), arrive(A, 1, 9, (), copies))
    state = after(state, arrive(NEW, 1, None, ()))

    assert state.record.phase is GenerationPhase.GATHERING
    assert after(state, Sealed(1, 3)).record.plan == GenerationPlan(
        4,
        StateOrigin.MEMORY,
        (Given(0, What.COPY, 4, 0), Given(1, What.COPY, 4, 0)),
    )
    assert said(state, Sealed(1, 6))[0] == [RestartBegan(2, 2, Cause.NO_COPY, 6)]


def watched() -> State:
    """Return two ranks that train already, from step 4 on, in generation 3 of attempt 2."""
    room = {"a": 1, "b": 1}
    return trains(Holding.REPLICATED, (B, A), room, 3, 2, 4, RecoveryLimits())


def test_a_job_that_trains_already_is_quiet_until_it_loses_somebody() -> None:
    state = watched()

    assert [seat.who for seat in state.record.seats] == [A, B]
    assert is_quiet(state)
    told, orders = said(state, Exited(B, -9, 9))
    assert told == [GenerationBegan(4, RecoveryMode.LIVE, "exit_signal_9_rank_1")]
    joins = [join(A, 4), fork(NEW, 4, 2), join(NEW, 4)]
    assert orders == [make_store(4, 2), Seal(4), *joins]


def test_the_next_weaver_asks_whether_those_who_trained_still_do() -> None:
    state = watched()

    later = restore(
        state, record_from_dict(json.loads(json.dumps(record_to_dict(state.record)))), 9.0
    )

    assert not is_quiet(later)
    assert due(later) == (go(A, 3, 4), go(B, 3, 4))
    assert is_quiet(after(later, started(A, 3), started(B, 3)))


def test_what_waits_for_time_is_not_quiet() -> None:
    state = watched()

    assert not is_quiet(after(state, broke(A, 3, is_collective=True)))
    assert not is_quiet(after(state, Exited(B, -9, 9)))
    assert is_quiet(after(state, finished(A, 3), finished(B, 3)))
