"""Devices and backends by the user's word and by what torch sees."""

import pytest
import torch

from torchloom.worker import dist
from torchloom.worker.dist.device import BadDevice, missing_backend

CPU_ONLY = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCH_DEVICE", "TORCH_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@CPU_ONLY
def test_without_an_accelerator_it_is_the_cpu_and_gloo() -> None:
    told = (dist.get_torch_device_type(), dist.get_torch_device(), dist.get_torch_backend())

    assert told == ("cpu", torch.device("cpu"), "gloo")
    assert dist.get_torch_device(as_torch_device=False) == "cpu"


@pytest.mark.parametrize("wish", ["nccl", "xccl", "mpi", "gloo", "cpu:gloo,cuda:nccl"])
def test_the_users_backend_is_the_backend(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_BACKEND", wish.upper())

    assert dist.get_torch_backend() == wish


@pytest.mark.parametrize("wish", ["cpu", "CPU", "cpu:0"])
def test_the_users_device_is_the_device(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE", wish)

    assert dist.get_torch_device() == torch.device("cpu")


@CPU_ONLY
@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ("gpu", "no device 'gpu'; set TORCH_DEVICE to one of cpu, cuda, mps, xpu"),
        ("cuda", "sees no cuda device; unset TORCH_DEVICE"),
        ("xpu:1", "sees no xpu device"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    wish: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DEVICE", wish)

    with pytest.raises(BadDevice, match=why):
        dist.get_torch_device()


@CPU_ONLY
def test_what_a_backend_lacks_is_said() -> None:
    built = torch.distributed.is_nccl_available()
    nccl = "nccl needs a cuda device and this process sees none" if built else "no nccl"

    assert missing_backend("gloo") == ""
    assert "this torch has no nonsense" in missing_backend("cpu:gloo,cuda:nonsense")
    assert nccl in missing_backend("cpu:gloo,cuda:nccl")


def test_synchronising_a_host_is_nothing() -> None:
    dist.synchronize()
    dist.synchronize("cpu")
