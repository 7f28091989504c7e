"""What checkpoints carry of a program: told, and put back into what is there."""

import random
from typing import Any

import pytest

pytestmark = pytest.mark.needs("torch")


def things(**tracked: Any) -> Any:
    from torchloom.worker.run.tracked_state import TrackedState

    one = TrackedState()
    one.track(tracked)
    return one


def trained(steps: int) -> tuple[Any, Any]:
    """Return a model and its optimizer after some steps; before the first it has no state."""
    import torch

    from torchloom.worker.run.wrap import Wrapped

    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model = Wrapped(inner, {}, sync=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        model(torch.randn(4, 3)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def carrying(model: Any, **tracked: Any) -> Any:
    one = things(**tracked)
    one.add_model("", model)
    return one


def test_an_optimizer_that_has_taken_no_step_gets_the_momentum_of_one_that_has() -> None:
    import copy

    import torch

    model, optimizer = trained(3)
    before = carrying(model, optimizer=optimizer)
    saved = copy.deepcopy((before.shared(), before.own()))
    fresh, unused = trained(0)

    missing = carrying(fresh, optimizer=unused).put_back(*saved)

    assert missing == []
    both = zip(model.state_dict().values(), fresh.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)
    states = optimizer.state_dict()["state"], unused.state_dict()["state"]
    for at, state in states[0].items():
        assert torch.equal(state["momentum_buffer"], states[1][at]["momentum_buffer"])


def test_weights_and_optimizers_are_shared_and_the_rest_is_a_ranks_own() -> None:
    import torch

    model, optimizer = trained(1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2])
    scaler = torch.amp.GradScaler("cpu")

    one = carrying(model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    shared, own = one.shared(), one.own()

    assert shared["models"]["model"].keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert shared["tracked"].keys() == {"optimizer", "scheduler"}
    assert type(shared["tracked"]["scheduler"]["milestones"]) is dict
    assert own["tracked"].keys() == {"scaler"}
    assert len(own["buffers"]["model"]) == 3
    assert "gradients" not in own


def test_gradients_are_carried_only_while_they_are_added_up() -> None:
    import torch

    model, optimizer = trained(1)
    one = carrying(model, optimizer=optimizer)

    one.begin_step()
    model(torch.ones(4, 3)).pow(2).sum().backward()
    between = one.own()
    one.begin_step()
    optimizer.step()
    after = one.own()

    assert torch.equal(between["gradients"]["model"]["0.weight"], model.module[0].weight.grad)
    assert "gradients" not in after


@pytest.mark.parametrize(
    ("tracked", "said"),
    [
        ({"ema": 3}, "ema is a int without state_dict and load_state_dict"),
        ({"model": "wrapped"}, "model is wrapped, so it is tracked already"),
        ({"numbers": "two"}, "another object is tracked as 'numbers'"),
    ],
)
def test_what_cannot_be_tracked_is_refused(tracked: Any, said: str) -> None:
    from torchloom.worker.run.tracked_state import BadTrackedState

    made = {name: trained(0)[0] if one == "wrapped" else one for name, one in tracked.items()}
    one = things(**({"numbers": random.Random(1)} if "numbers" in made else {}))

    with pytest.raises(BadTrackedState, match=said):
        one.track({**made, "numbers": random.Random(1)} if "numbers" in made else made)


def test_generators_of_the_program_are_carried_like_other_state() -> None:
    import numpy
    import torch

    def made(seed: int) -> dict[str, Any]:
        old = numpy.random.RandomState(seed)
        new = {
            "torch": torch.Generator().manual_seed(seed),
            "numpy": numpy.random.default_rng(seed),
        }
        return {**new, "old": old, "random": random.Random(seed)}

    def drawn(torch_: Any, numpy_: Any, old: Any, random_: Any) -> list[float]:
        return [
            torch.rand(3, generator=torch_).tolist(),
            *(numpy_.random(3)),
            old.rand(),
            random_.random(),
        ]

    first, second = made(1), made(2)
    before = things(**first)
    drawn(*first.values())
    own = before.own()
    expected = drawn(*first.values())

    after = things(**second)
    missing = after.put_back({"models": {}, "tracked": {}}, own)

    assert missing == []
    assert drawn(*second.values()) == expected
    after.track(second)  # the same ones again


def test_a_checkpoint_of_another_model_is_refused_by_name() -> None:
    import torch

    from torchloom.worker.run.tracked_state import OtherProgram
    from torchloom.worker.run.wrap import Wrapped

    model, optimizer = trained(1)
    before = carrying(model, optimizer=optimizer)
    other = carrying(Wrapped(torch.nn.Linear(3, 3), {}, sync=True))

    with pytest.raises(OtherProgram, match=r"has another model: 0\.bias, 0\.weight, 1\.bias"):
        other.put_back(before.shared(), before.own())


def test_what_a_peer_gives_and_what_a_rank_knows_alone_make_the_whole_state() -> None:
    import torch

    class Own:
        def __init__(self, count: int) -> None:
            self.count = count

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    def made(steps: int) -> tuple[Any, Any, Any]:
        model, optimizer = trained(steps)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**steps)
        scaler.scale(torch.zeros(()))
        told = {"optimizer": optimizer, "scaler": scaler, "own": Own(steps)}
        return model, told, carrying(model, **told)

    model, _, before = made(3)
    fresh, taken, after = made(0)

    common, private = before.common(), before.private()
    after.take_common(common)
    after.take_private(private)

    assert set(common["tracked"]) == {"optimizer", "scaler"}
    assert set(private["tracked"]) == {"own"}
    both = zip(model.state_dict().values(), fresh.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)
    assert [taken["own"].count, taken["scaler"].get_scale()] == [3, 8.0]


def test_a_step_is_whole_until_an_optimizer_or_a_scheduler_moves_in_it() -> None:
    import torch

    model, optimizer = trained(1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    one = carrying(model, optimizer=optimizer, scheduler=scheduler)

    one.begin_step()
    assert one.is_whole()
    optimizer.step()
    assert not one.is_whole()
    one.begin_step()
    assert one.is_whole()
    scheduler.step()
    assert not one.is_whole()


def test_gradients_that_an_optimizer_has_not_taken_count_in_the_step_that_follows() -> None:
    model, optimizer = trained(1)
    one = carrying(model, optimizer=optimizer)

    one.begin_step()
    assert [one.adds_up(is_begun=True), one.adds_up(is_begun=False)] == [False, True]
    one.begin_step()
    assert one.adds_up(is_begun=True)
    optimizer.step()
    assert not one.adds_up(is_begun=False)
    one.drop_gradients()
    one.begin_step()
    assert not one.adds_up(is_begun=True)
