"""Each tensor is dealt to one rank, every rank deals alike, and none gets far more than others."""

from hypothesis import given
from hypothesis import strategies as some

from torchloom.worker.saving.saver import deal

sizes_of = some.dictionaries(some.text(max_size=5), some.integers(0, 10**6), max_size=40)


@given(sizes_of, some.integers(1, 9), some.randoms())
def test_every_rank_deals_alike_and_none_gets_much_more(sizes, world_size, shuffler) -> None:  # type: ignore[no-untyped-def]
    mixed = list(sizes.items())
    shuffler.shuffle(mixed)

    owners = deal(sizes, world_size)

    assert owners == deal(dict(mixed), world_size)
    assert owners.keys() == sizes.keys()
    loads = [
        sum(size for name, size in sizes.items() if owners[name] == rank)
        for rank in range(world_size)
    ]
    assert max(loads) <= sum(loads) / world_size + max(sizes.values(), default=0)


def test_equal_tensors_are_dealt_evenly() -> None:
    owners = deal({f"layer.{number}": 100 for number in range(8)}, 4)

    assert sorted(owners.values()) == [0, 0, 1, 1, 2, 2, 3, 3]
