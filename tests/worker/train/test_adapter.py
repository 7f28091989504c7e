"""The six methods of a framework, and PyTorch's."""

import inspect
from typing import Any

import pytest

from torchloom.worker.train.adapter import FrameworkAdapter

from .jobs import job

CONTRACT = {
    "build_model": ["spec"],
    "build_dataloader": ["spec", "rank", "world_size"],
    "init_distributed": ["plan"],
    "train_step": ["state", "batch", "dist"],
    "serialize_state": ["state"],
    "deserialize_state": ["blob"],
}


def signatures(kind: type, names: Any) -> dict[str, list[str]]:
    return {name: list(inspect.signature(getattr(kind, name)).parameters)[1:] for name in names}


def test_a_framework_has_exactly_the_six_methods_of_the_contract() -> None:
    own = [name for name, _ in inspect.getmembers(FrameworkAdapter, inspect.isfunction)]

    assert {name for name in own if not name.startswith("_")} == CONTRACT.keys()
    assert signatures(FrameworkAdapter, CONTRACT) == CONTRACT


@pytest.mark.needs("torch")
def test_pytorch_keeps_the_contract() -> None:
    from torchloom.worker.train.pytorch import PyTorchAdapter

    assert FrameworkAdapter in PyTorchAdapter.__mro__
    assert signatures(PyTorchAdapter, CONTRACT) == CONTRACT


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a rank without peers, on the CPU."""
    import torch

    from torchloom.worker.train.pytorch import TorchContext

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    return TorchContext(0, 1, torch.device("cpu"))


def begun(adapter: Any, spec: Any, live: Any = None) -> Any:
    return adapter.begin(spec, adapter.build_model(spec), 10, live)


@pytest.mark.needs("torch")
def test_a_state_that_was_written_down_goes_on_with_the_same_bits(alone: Any) -> None:
    import torch

    from torchloom.worker.train.pytorch import PyTorchAdapter

    spec = job({"optimizer": "adam", "schedule": "cosine", "hidden": 8, "batch_size": 16}, seed=2)
    adapter = PyTorchAdapter()
    first, second = list(adapter.build_dataloader(spec, 0, 1))[:2]
    state, _ = adapter.train_step(begun(adapter, spec), first, alone)
    blob = adapter.serialize_state(state)

    expected, told = adapter.train_step(state, second, alone)
    found, again = adapter.train_step(PyTorchAdapter().deserialize_state(blob), second, alone)

    assert isinstance(blob, bytes)
    assert (found.step, again["lr"], float(again["loss"])) == (2, told["lr"], float(told["loss"]))
    both = zip(found.module.parameters(), expected.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


@pytest.mark.needs("torch")
def test_a_state_with_code_in_it_is_not_loaded(alone: Any) -> None:
    import io

    import torch

    from torchloom.worker.train.pytorch import PyTorchAdapter

    target = io.BytesIO()
    torch.save({"spec": alone.__class__}, target)

    with pytest.raises(Exception, match="Weights only load failed"):
        PyTorchAdapter().deserialize_state(target.getvalue())


@pytest.mark.needs("torch")
def test_accumulated_passes_are_one_step_with_all_their_samples(alone: Any) -> None:
    import torch

    from torchloom.worker.train.pytorch import PyTorchAdapter

    spec = job({"optimizer": "sgd", "lr": 0.5, "hidden": 8})
    adapter = PyTorchAdapter()
    x, y = torch.randn(11, 784), torch.arange(11) % 10
    parts = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]

    whole, told = adapter.train_step(begun(adapter, spec), [(x, y)], alone)
    summed, also = adapter.train_step(begun(adapter, spec), parts, alone)

    both = zip(whole.module.parameters(), summed.module.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in both)
    assert float(also["loss"]) == pytest.approx(float(told["loss"]))
    assert float(also["accuracy"]) == pytest.approx(float(told["accuracy"]))


@pytest.mark.needs("torch")
def test_values_that_change_from_outside_act_in_the_next_step(alone: Any) -> None:
    from torchloom.worker.train.pytorch import PyTorchAdapter

    live = {"lr": 0.5, "clip": 0.0}
    spec = job({"optimizer": "sgd", "schedule": "linear"})
    adapter = PyTorchAdapter()
    batch = next(iter(adapter.build_dataloader(spec, 0, 1)))

    state, first = adapter.train_step(begun(adapter, spec, live), batch, alone)
    before = [each.detach().clone() for each in state.module.parameters()]
    live.update(lr=0.25, clip=1e-9)
    state, second = adapter.train_step(state, batch, alone)
    after = [each.detach().clone() for each in state.module.parameters()]
    live.update(momentum=0.25, weight_decay=0.125)
    state, _ = adapter.train_step(state, batch, alone)

    moved = max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True))
    group = state.optimizer.param_groups[0]
    assert (first["lr"], second["lr"]) == (0.5, 0.25 * 0.9)
    assert moved < 1e-8
    assert (group["momentum"], group["weight_decay"]) == (0.25, 0.125)
    assert state.step == 3
