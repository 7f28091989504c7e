"""A wrapped model is the model itself, but for its forward pass."""

import copy
from typing import Any

import pytest

pytestmark = pytest.mark.needs("torch")


def net() -> Any:
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            self.head = nn.Linear(4, 2)
            self.scale = 2.0

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x)) * self.scale

        def loss(self, x: Any) -> Any:
            return self(x).sum()

    return Net()


def wrapped(model: Any) -> Any:
    from torchloom.worker.run.wrap import Wrapped

    return Wrapped(model, {}, sync=True)


def test_what_it_lists_saves_and_loads_is_the_models_own() -> None:
    model = net()
    one = wrapped(model)

    names = [name for name, _ in model.named_parameters()]
    one.load_state_dict(model.state_dict())

    assert [name for name, _ in one.named_parameters()] == names
    assert list(one.state_dict()) == list(model.state_dict())
    assert list(one.parameters()) == list(model.parameters())
    assert list(one.buffers()) == list(model.buffers())
    assert dict(one.named_modules()) == dict(model.named_modules())
    assert list(one.children()) == list(model.children())
    assert one.module is model
    assert repr(one) == repr(model)


def test_attributes_and_methods_of_the_model_are_there_and_set_there() -> None:
    import torch

    model = net()
    one = wrapped(model)

    one.scale = 3.0
    one.register_buffer("table", torch.zeros(2))

    assert (one.scale, model.scale) == (3.0, 3.0)
    assert one.head is model.head
    assert one.loss(torch.ones(2, 4)) == model.loss(torch.ones(2, 4))
    assert "table" in dict(model.named_buffers())
    with pytest.raises(AttributeError, match="nothing"):
        _ = one.nothing


def test_training_and_moving_reach_the_model() -> None:
    import torch

    model = net()
    one = wrapped(model)

    one.eval()
    assert (one.training, model.training, model.head.training) == (False, False, False)
    one.train().double()
    one.apply(lambda part: part.requires_grad_(False))

    assert (one.training, model.training) == (True, True)
    assert {each.dtype for each in model.parameters()} == {torch.float64}
    assert not any(each.requires_grad for each in model.parameters())


def test_a_copy_is_a_model_of_its_own() -> None:
    import torch

    model = net()
    one = wrapped(model)

    copied = copy.deepcopy(one)
    averaged = torch.optim.swa_utils.AveragedModel(one)
    averaged.update_parameters(one)

    assert type(copied) is type(model)
    assert copied.head.weight is not model.head.weight
    assert torch.equal(averaged.module.head.weight, model.head.weight)


def test_without_peers_there_is_nobody_to_wait_for() -> None:
    import torch

    model = net()
    one = wrapped(model)
    x = torch.ones(3, 4)

    with one.no_sync():
        found = one(x)
    one.rebuild()

    assert torch.equal(found, model(x))


def test_ranks_that_have_not_met_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchloom.worker.run.wrap import NoGroup

    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(NoGroup, match=r"call torch\.distributed\.init_process_group"):
        wrapped(net())
