"""Timers measure, count and get out of the way."""

import logging
import time

import pytest
import torch

from torchloom.worker import dist
from torchloom.worker.dist.timer import TIMINGS


class Device:
    """An accelerator that works behind the program's back, as far as torch can tell."""

    def __init__(self) -> None:
        self.busy = 0.0  # seconds until it has done what it was given

    def synchronize(self, _device: object) -> None:
        time.sleep(self.busy)
        self.busy = 0.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setenv("TORCH_DEVICE", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "synchronize", made.synchronize)
    return made


def test_a_block_and_a_function_are_timed() -> None:
    timer = dist.Timer("work")

    @timer
    def work(x: int) -> int:
        time.sleep(0.02)
        return x + 1

    with timer:
        inner = work(1)
    again = work(2)

    assert (inner, again, timer.count) == (2, 3, 3)
    assert timer.seconds >= 0.02
    assert timer.total >= 0.06  # the outer block holds the inner one
    assert timer.mean == timer.total / 3


def test_each_block_is_timed_from_its_own_beginning() -> None:
    timer = dist.Timer()

    with timer:
        time.sleep(0.5)
        with timer:
            pass
        inner = timer.seconds

    assert inner < 0.5 <= timer.seconds


def test_what_the_device_is_still_at_before_a_block_is_not_the_blocks(device: Device) -> None:
    device.busy = 0.5

    with dist.Timer() as timer:
        pass

    assert (device.busy, timer.seconds < 0.5) == (0, True)


def test_what_a_block_gave_the_device_to_do_is_timed(device: Device) -> None:
    with dist.Timer() as timer:
        device.busy = 0.05

    assert timer.seconds >= 0.05


def test_a_device_is_not_waited_for_behind_an_error(device: Device) -> None:
    @dist.Timer()
    def fail() -> None:
        device.busy = 0.05
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert device.busy == 0.05


def test_an_error_goes_through_and_is_counted() -> None:
    timer = dist.Timer()

    with pytest.raises(ZeroDivisionError), timer:
        _ = 1 / 0

    assert timer.count == 1


def test_a_timed_function_is_recorded_and_told_by_rank_0(caplog: pytest.LogCaptureFixture) -> None:
    @dist.timeitlogit(verbose=True, prefix="train")
    def step(x: int) -> int:
        return x * 2

    @dist.timeitlogit(rank=3, record=False, verbose=True)
    def quiet() -> None:
        return None

    with caplog.at_level(logging.INFO, logger="torchloom"):
        results = [step(2), step(3)]
        quiet()

    (name,) = (name for name in TIMINGS if name.endswith("step"))
    assert [name for name in TIMINGS if name.endswith("quiet")] == []
    assert results == [4, 6]
    assert name.startswith("train/")
    assert TIMINGS[name].count == 2
    assert [record.getMessage().partition(" took ")[0] for record in caplog.records] == [name] * 2


def test_a_seed_makes_every_source_of_chance_repeat() -> None:
    import random

    numpy = pytest.importorskip("numpy")

    draws = []
    for _ in range(2):
        dist.seed_everything(2**33 + 5)
        draws.append((random.random(), torch.rand(1).item(), float(numpy.random.rand())))

    assert draws[0] == draws[1]
