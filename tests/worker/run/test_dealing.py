"""Every sample of an epoch is dealt exactly once, and nobody is left without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.worker.run.loader import blocks, count, share

SIZES = st.integers(1, 9)
WORLDS = st.integers(1, 7)


@given(total=st.integers(1, 300), world=WORLDS, size=SIZES)
def test_an_epoch_is_dealt_whole_and_evenly(total: int, world: int, size: int) -> None:
    if total < world:
        return

    dealt = list(blocks(total, 0, world, size, drop_last=False))
    shares = [[share(block, rank, world) for rank in range(world)] for block in dealt]

    assert [at for each in shares for part in each for at in part] == list(range(total))
    assert len(dealt) == count(total, world, size, drop_last=False)
    for each in shares:
        sizes = [len(part) for part in each]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= size + 1


@given(total=st.integers(8, 300), before=WORLDS, after=WORLDS, size=SIZES, steps=st.integers(0, 50))
def test_other_ranks_go_on_with_exactly_the_rest(
    total: int, before: int, after: int, size: int, steps: int
) -> None:
    gone = list(blocks(total, 0, before, size, drop_last=False))[:steps]
    start = gone[-1][1] if gone else 0

    rest = list(blocks(total, start, after, size, drop_last=False))

    places = [at for block in rest for rank in range(after) for at in share(block, rank, after)]
    assert sorted(set(places)) == list(range(start, total))
    if total - start >= after:
        assert len(places) == total - start
    assert all(len(share(block, rank, after)) for block in rest for rank in range(after))


@pytest.mark.parametrize(
    ("total", "dealt"),
    [
        (16, [(0, 8), (8, 16)]),
        (18, [(0, 8), (8, 16), (16, 18)]),
        (17, [(0, 8), (8, 17)]),
        (5, [(0, 5)]),
    ],
)
def test_what_is_too_little_for_all_ranks_makes_the_last_batch_larger(
    total: int, dealt: list[tuple[int, int]]
) -> None:
    assert list(blocks(total, 0, 2, 4, drop_last=False)) == dealt


def test_a_rest_can_be_dropped() -> None:
    assert list(blocks(19, 0, 2, 4, drop_last=True)) == [(0, 8), (8, 16)]
    assert count(19, 2, 4, drop_last=True) == 2


def test_the_last_samples_for_more_ranks_than_there_are_come_twice_rather_than_not_at_all() -> None:
    (rest,) = blocks(10, 8, 4, 4, drop_last=False)

    assert [list(share(rest, rank, 4)) for rank in range(4)] == [[8], [9], [8], [9]]
