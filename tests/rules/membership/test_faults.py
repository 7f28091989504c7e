"""Whose fault an exception is, and whose word still counts."""

import pytest

from torchloom.rules.membership.election import inherits, newest_copy, page_for, slot_of
from torchloom.rules.membership.faults import FaultOwner, Fence, GenerationNews, admit, fault_owner


@pytest.mark.parametrize("is_collective", [True, False])
def test_an_exception_of_a_generation_that_is_over_is_a_peers(is_collective: bool) -> None:
    assert fault_owner(GenerationNews.OVER, 0.0, is_collective) is FaultOwner.PEER


def test_an_exception_of_the_program_is_raised_after_two_seconds() -> None:
    assert fault_owner(GenerationNews.NOTHING, 1.9, is_collective=False) is FaultOwner.OPEN
    assert fault_owner(GenerationNews.NOTHING, 2.0, is_collective=False) is FaultOwner.OWN


def test_a_collective_error_is_raised_only_if_the_generation_stands() -> None:
    assert fault_owner(GenerationNews.STANDS, 1.9, is_collective=True) is FaultOwner.OPEN
    assert fault_owner(GenerationNews.STANDS, 2.0, is_collective=True) is FaultOwner.OWN


def test_nobody_dies_because_the_weaver_is_away() -> None:
    assert fault_owner(GenerationNews.NOTHING, 59.0, is_collective=True) is FaultOwner.OPEN


def test_nothing_of_an_older_weaver_or_generation_is_carried_out() -> None:
    fence = Fence(epoch=3, generation=7)

    assert admit(fence, epoch=2, generation=9) == (fence, False)
    assert admit(fence, epoch=3, generation=6) == (fence, False)
    assert admit(fence, epoch=4, generation=6) == (Fence(4, 7), False)
    assert admit(fence, epoch=3, generation=7) == (fence, True)
    assert admit(fence, epoch=4, generation=8) == (Fence(4, 8), True)


def test_three_steps_in_a_row_have_a_slot_each() -> None:
    assert [len({slot_of(s), slot_of(s + 1), slot_of(s + 2)}) for s in range(4)] == [3] * 4


def test_a_step_needs_the_page_of_the_one_before() -> None:
    assert [page_for(start) for start in (0, 1, 8)] == [None, 0, 7]


def test_pages_of_an_earlier_stay_on_a_node_are_stale() -> None:
    assert [inherits(last, 5) for last in (0, 3, 4)] == [False, False, True]


def test_a_copy_counts_when_somebody_has_each_shard() -> None:
    held = {0: frozenset({(0, 4), (1, 4), (0, 6)}), 1: frozenset({(0, 4), (1, 6), (0, 8)})}

    assert newest_copy(held, ranks=2) == 6
    assert newest_copy(held, ranks=3) is None
    assert newest_copy({}, ranks=2) is None
