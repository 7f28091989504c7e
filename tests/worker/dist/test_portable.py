import os

import pytest
import torch
import torch.distributed as dist

from torchloom.worker.dist import portable

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "")
    monkeypatch.setenv("MASTER_PORT", "")


def test_a_process_of_its_own_is_rank_0_of_1() -> None:
    facts = (portable.rank(), portable.local_rank(), portable.world_size())

    assert facts == (0, 0, 1)
    assert portable.is_rank0()
    assert portable.is_local_rank0()
    assert portable.local_cuda_device() == torch.device("cuda:0")


def test_the_launch_is_believed_before_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert (portable.rank(), portable.local_rank(), portable.world_size()) == (3, 1, 4)
    assert not portable.is_rank0()


def test_a_group_of_one_is_made_without_a_launch() -> None:
    done = []
    device = portable.init_pg("gloo")
    try:
        with (
            pytest.warns(UserWarning, match="LOCAL_RANK is not set"),
            portable.on_rank0_first(),
            portable.on_local_rank0_first(),
        ):
            done.append(dist.get_world_size())
        assert portable.local_device() == device == torch.device("cpu")
    finally:
        dist.destroy_process_group()

    assert done == [1]
    assert os.environ["MASTER_ADDR"] == "localhost"
