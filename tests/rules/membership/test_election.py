"""From which step a generation goes on, and who gets what from whom."""

from torchloom.messages.membership import Given
from torchloom.rules.membership.election import (
    Cause,
    Facts,
    GenerationPlan,
    Holding,
    MemberPosition,
    RecoveryMode,
    StateOrigin,
    What,
    elect,
)

NODES = {0: "a", 1: "a", 2: "b"}
LIVE = Facts(Holding.REPLICATED, RecoveryMode.LIVE, NODES)
SHARDED = Facts(Holding.SHARDED, RecoveryMode.LIVE, NODES)


def at(applied: int | None, *pages: int) -> MemberPosition:
    return MemberPosition(applied, frozenset(pages))


def holding(*copies: tuple[int, int]) -> MemberPosition:
    return MemberPosition(copies=frozenset(copies))


def pages(step: int) -> tuple[Given, ...]:
    return tuple(Given(rank, What.PAGE, step, rank) for rank in range(3))


def test_of_a_torn_step_the_member_with_the_highest_applied_step_is_the_source() -> None:
    standings = {0: at(7, 5, 6, 7), 1: at(8, 6, 7, 8), 2: at(None, 6, 7)}

    plan = elect(standings, LIVE)

    moves = (Given(0, What.STATE, 8, 1), Given(2, What.STATE, 8, 1), *pages(7))
    assert plan == GenerationPlan(8, StateOrigin.PEER, moves)


def test_of_several_sources_the_one_on_the_same_node_sends() -> None:
    standings = {0: at(8, 7), 1: at(None, 7), 2: at(8, 7)}
    facts = Facts(Holding.REPLICATED, RecoveryMode.LIVE, {0: "a", 1: "b", 2: "b"})

    plan = elect(standings, facts)

    assert plan == GenerationPlan(8, StateOrigin.PEER, (Given(1, What.STATE, 8, 2), *pages(7)))


def test_before_the_first_step_nobody_needs_a_page() -> None:
    plan = elect({0: at(0, 0), 1: at(None), 2: at(0)}, LIVE)

    assert plan == GenerationPlan(0, StateOrigin.PEER, (Given(1, What.STATE, 0, 0),))


def test_a_page_that_died_with_its_node_is_said_to_be_a_peers() -> None:
    plan = elect({0: at(8, 7), 1: at(8, 7), 2: at(None)}, LIVE)

    moves = (
        Given(2, What.STATE, 8, 0),
        *pages(7)[:2],
        Given(2, What.PRIVATE, 7, 0),
    )
    assert plan == GenerationPlan(8, StateOrigin.PEER, moves, inexact=(2,))


def test_a_job_that_wants_its_bits_is_restarted_when_a_page_is_lost() -> None:
    facts = Facts(Holding.REPLICATED, RecoveryMode.LIVE, NODES, is_exact=True)

    assert elect({0: at(8, 7), 1: at(8, 7), 2: at(None)}, facts) is Cause.PAGES


def test_without_a_whole_state_there_is_no_source() -> None:
    assert elect({0: at(None, 7), 1: at(None, 7), 2: at(None)}, LIVE) is Cause.NO_STATE


def test_set_up_that_uses_collectives_cannot_join_those_who_are_past_it() -> None:
    newcomer = MemberPosition(uses_collectives=True)

    assert elect({0: at(8, 7), 1: at(8, 7), 2: newcomer}, LIVE) is Cause.PROLOGUE


def test_sharded_state_goes_back_to_the_newest_complete_copy() -> None:
    standings = {
        0: holding((0, 4), (2, 4), (0, 6), (2, 6)),
        1: holding((1, 4), (0, 4), (1, 6)),
        2: holding(),  # its node is lost; rank 0 has its shard of both
    }

    plan = elect(standings, SHARDED)

    moves = (
        Given(0, What.COPY, 6, 0),
        Given(1, What.COPY, 6, 1),
        Given(2, What.COPY, 6, 0),
    )
    assert plan == GenerationPlan(6, StateOrigin.MEMORY, moves)


def test_a_copy_that_one_shard_lacks_does_not_count() -> None:
    standings = {0: holding((0, 4), (2, 4), (0, 6)), 1: holding((1, 4), (1, 6)), 2: holding()}

    plan = elect(standings, SHARDED)

    assert isinstance(plan, GenerationPlan)
    assert plan.start == 4


def test_sharded_state_without_a_copy_cannot_go_on_live() -> None:
    standings = {rank: holding((rank, 4)) for rank in range(3)}
    newer = Facts(Holding.SHARDED, RecoveryMode.LIVE, NODES, checkpoint=5)

    assert elect({rank: holding() for rank in range(3)}, SHARDED) is Cause.NO_COPY
    assert elect(standings, newer) is Cause.NO_COPY


def test_a_restart_takes_the_newest_of_memory_and_checkpoint() -> None:
    copies = {rank: holding((rank, 4)) for rank in range(3)}

    def plan(
        checkpoint: int | None, standings: dict[int, MemberPosition]
    ) -> tuple[int, StateOrigin]:
        facts = Facts(Holding.REPLICATED, RecoveryMode.RESTART, NODES, checkpoint)
        found = elect(standings, facts)
        assert isinstance(found, GenerationPlan)
        return found.start, found.origin

    nothing = {rank: holding() for rank in range(3)}
    assert plan(None, copies) == (4, StateOrigin.MEMORY)
    assert plan(4, copies) == (4, StateOrigin.MEMORY)
    assert plan(6, copies) == (6, StateOrigin.CHECKPOINT)
    assert plan(6, nothing) == (6, StateOrigin.CHECKPOINT)
    assert plan(None, nothing) == (0, StateOrigin.SCRATCH)
