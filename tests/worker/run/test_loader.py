"""The run's own loader: where it is, is all there is to it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.needs("torch")


class Place:
    """One rank of some, with a seed."""

    def __init__(self, rank: int = 0, world_size: int = 1, seed: int = 3) -> None:
        self.rank, self.world_size, self.seed = rank, world_size, seed


class Noisy:
    """Samples that draw from all three sources of chance."""

    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        import numpy
        import torch

        return at, torch.rand(()).item(), random.random(), numpy.random.rand()


def loader(place: Place | None = None, dataset: Any = None, **more: Any) -> Any:
    from torchloom.worker.run.loader import Loader

    told = {"batch_size": 4, "collate_fn": list, **more}
    return Loader(dataset or Noisy(), place or Place(), **told)


def indices(batches: Iterator[Any]) -> list[int]:
    return [sample[0] for batch in batches for sample in batch]


def test_each_epoch_is_another_order_of_all_samples() -> None:
    one = loader()

    first, second = indices(iter(one)), indices(iter(one))

    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    assert first == indices(iter(loader()))
    assert first != indices(iter(loader(Place(seed=4))))


def test_without_shuffling_the_order_is_the_datasets() -> None:
    assert indices(iter(loader(shuffle=False))) == list(range(40))


@pytest.mark.process
@pytest.mark.parametrize(
    "workers",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}],
)
def test_a_position_is_enough_to_go_on_with_the_same_samples(workers: dict[str, Any]) -> None:
    whole = loader()
    expected = [list(whole), list(whole)]
    one = loader(**workers)
    list(one)
    batches = iter(one)
    for _ in range(3):
        next(batches)

    again = loader(**workers)
    again.load_state_dict(one.state_dict())
    rest = list(again)

    assert one.state_dict() == {"epoch": 1, "dealt": 12}
    assert rest == expected[1][3:]
    assert again.state_dict() == {"epoch": 2, "dealt": 0}


@pytest.mark.parametrize("more", [{}, {"drop_last": True}, {"num_workers": 1}], ids=str)
@pytest.mark.process
def test_a_loader_says_which_batch_ends_its_epoch(more: dict[str, Any]) -> None:
    one = loader(dataset=Noisy(10), **more)

    ends = [one.is_epoch_done for _ in range(2) for _ in one]
    again = loader(dataset=Noisy(10), **more)
    again.load_state_dict({"epoch": 1, "dealt": 4})
    rest = [again.is_epoch_done for _ in again]

    epoch = [False, True] if "drop_last" in more else [False, False, True]
    assert ends == epoch * 2
    assert rest == epoch[1:]


def test_ranks_deal_an_epoch_among_themselves_and_others_take_up_the_rest() -> None:
    before = [loader(Place(rank, 4), Noisy(43)) for rank in range(4)]
    batches = [iter(one) for one in before]
    gone = [next(each) for each in batches for _ in range(1)]

    after = [loader(Place(rank, 3), Noisy(43)) for rank in range(3)]
    for one in after:
        one.load_state_dict(before[0].state_dict())
    rest = [indices(iter(one)) for one in after]

    seen = [sample[0] for batch in gone for sample in batch] + [at for each in rest for at in each]
    assert sorted(seen) == list(range(43))
    assert max(map(len, rest)) - min(map(len, rest)) <= 1


def test_reading_samples_here_leaves_the_programs_own_chance_alone() -> None:
    import torch

    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(()).item(), random.random()

    torch.manual_seed(1)
    random.seed(1)
    next(iter(loader()))

    assert (torch.rand(()).item(), random.random()) == expected


def test_a_dataset_that_makes_whole_batches_is_asked_for_them() -> None:
    class Whole(Noisy):
        def __getitems__(self, at: list[int]) -> list[Any]:
            return [(one, "whole") for one in at]

    batch = next(iter(loader(dataset=Whole(), shuffle=False)))

    assert batch == [(0, "whole"), (1, "whole"), (2, "whole"), (3, "whole")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"dataset": iter([1])}, "run.loader takes a dataset with a length"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"sampler": [1]}, "run.loader divides the samples itself: leave sampler out"),
    ],
)
def test_what_cannot_be_dealt_is_refused(more: dict[str, Any], said: str) -> None:
    from torchloom.worker.run.loader import BadData

    with pytest.raises(BadData, match=said):
        loader(**more)


def test_fewer_samples_than_ranks_are_refused() -> None:
    from torchloom.worker.run.loader import BadData

    with pytest.raises(BadData, match="a dataset of 3 samples cannot be divided among 4 ranks"):
        next(iter(loader(Place(0, 4), Noisy(3))))
