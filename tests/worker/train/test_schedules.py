"""Learning rates over the steps, beside torch's own schedulers."""

import math
from typing import Any

import pytest

from torchloom.worker.train.hyperparameters import Hyper
from torchloom.worker.train.pytorch import factor

STEPS = 50


def by_torch(make: Any, *args: Any, **more: Any) -> list[float]:
    """Return the learning rates that a scheduler of torch gives to a rate of 1."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = make(optimizer, *args, **more)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def by_us(**hyper: Any) -> list[float]:
    return [factor(Hyper(**hyper), step, STEPS) for step in range(STEPS)]


@pytest.mark.needs("torch")
def test_schedules_go_as_torchs_own() -> None:
    from torch.optim import lr_scheduler

    assert by_us(schedule="cosine") == pytest.approx(
        by_torch(lr_scheduler.CosineAnnealingLR, STEPS)
    )
    assert by_us(schedule="cosine", decay_to=0.2) == pytest.approx(
        by_torch(lr_scheduler.CosineAnnealingLR, STEPS, eta_min=0.2)
    )
    assert by_us(schedule="step", step_size=7, gamma=0.5) == pytest.approx(
        by_torch(lr_scheduler.StepLR, 7, 0.5)
    )
    assert by_us(schedule="linear", decay_to=0.1) == pytest.approx(
        by_torch(lr_scheduler.LinearLR, 1.0, 0.1, STEPS)
    )
    assert by_us(schedule="onecycle") == pytest.approx(
        by_torch(lr_scheduler.OneCycleLR, 1.0, STEPS), rel=1e-6
    )
    assert by_us() == [1.0] * STEPS


def test_a_warm_up_rises_to_the_peak_and_the_rest_is_the_schedules() -> None:
    found = by_us(schedule="linear", warmup_steps=10)

    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert found[10:] == pytest.approx([1 - step / 40 for step in range(40)])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "step", "onecycle"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 1000])
def test_no_training_is_too_short_for_a_schedule(schedule: str, steps: int) -> None:
    hyper = Hyper(schedule=schedule, warmup_steps=0 if schedule == "onecycle" else 5)

    found = [factor(hyper, step, steps) for step in range(steps + 2)]

    assert all(0 <= each <= 1 and math.isfinite(each) for each in found)
