"""Loaders that know nothing of a run: their order can be had again, and what was dealt is left."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.needs("torch")


class Noisy:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, at: int) -> Any:
        import numpy
        import torch

        return at, torch.rand(()).item(), random.random(), numpy.random.rand()


def stock(**more: Any) -> Any:
    import torch

    told = {"batch_size": 4, "shuffle": True, "collate_fn": list, **more}
    return torch.utils.data.DataLoader(Noisy(), **told)  # type: ignore[arg-type]


def dealt(source: Any, position: dict[str, Any] | None = None, epochs: int = 2) -> list[Any]:
    """Deal as a run does: each step begins with generators that follow from its number."""
    from torchloom.worker.run.loader import open_source
    from torchloom.worker.run.rng import seed_generators

    opened = open_source(source, 0, epochs, order_seed=9)
    step = 0
    if position is not None:
        assert opened.restore(position, 1, 1) in ("", "the program reads its own data")
        step = position["step"]
    batches, found = opened.deal(), []
    while True:
        seed_generators(step)
        at = {**opened.position(), "step": step}
        batch = next(batches, None)
        if batch is None:
            return found
        found.append((at, batch))
        step += 1


def with_generator() -> Any:
    import torch

    return stock(generator=torch.Generator())


def with_sampler() -> Any:
    import torch

    weights = torch.ones(24)
    return stock(shuffle=False, sampler=torch.utils.data.WeightedRandomSampler(weights, 24))


def distributed() -> Any:
    import torch

    sampler: Any = torch.utils.data.DistributedSampler(Noisy(), 2, 0)  # type: ignore[arg-type]
    return stock(shuffle=False, sampler=sampler)


@pytest.mark.process
@pytest.mark.parametrize("at", [0, 2, 6, 7])
@pytest.mark.parametrize(
    "make", [stock, lambda: stock(num_workers=2), with_generator, with_sampler]
)
def test_a_stock_loader_goes_on_as_if_it_had_never_stopped(make: Any, at: int) -> None:
    random.seed()
    whole = dealt(make())

    again = dealt(make(), whole[at][0])

    assert [batch for _, batch in again] == [batch for _, batch in whole[at:]]
    orders = [[s[0] for _, (epoch, b) in whole if epoch == one for s in b] for one in (0, 1)]
    assert orders[0] != orders[1]


def test_a_distributed_sampler_is_told_of_each_epoch() -> None:
    whole = dealt(distributed())

    again = dealt(distributed(), whole[4][0])

    assert [batch for _, batch in again] == [batch for _, batch in whole[4:]]
    assert [epoch for _, (epoch, _) in whole] == [0] * 3 + [1] * 3
    epochs = [{s[0] for _, (at, b) in whole if at == one for s in b} for one in (0, 1)]
    assert epochs[0] != epochs[1]


def test_a_loader_with_a_place_of_its_own_is_asked_for_it() -> None:
    class Own:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 5:
                self.at += 1
                yield self.at - 1
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    whole = dealt(Own())

    assert [batch for _, batch in dealt(Own(), whole[3][0])] == [b for _, b in whole[3:]]
    assert [batch for _, batch in whole] == [(e, at) for e in (0, 1) for at in range(5)]


def test_counted_steps_go_on_counting() -> None:
    whole = dealt(5)

    assert [batch for _, batch in dealt(5, whole[7][0])] == [(1, 2), (1, 3), (1, 4)]


def test_another_number_of_ranks_is_about_as_far_in_a_stock_loader() -> None:
    from torchloom.worker.run.loader import open_source

    opened = open_source(stock(), 0, 2, order_seed=9)

    why = opened.restore({"epoch": 1, "dealt": 2}, 4, 2)

    assert why == "the loader cannot divide the rest of its epoch among another number of ranks"
    assert opened.position() == {"epoch": 1, "dealt": 4}
