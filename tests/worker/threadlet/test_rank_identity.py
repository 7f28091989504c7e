"""Who a rank is, by its environment."""

import pytest

from torchloom.worker.threadlet.rank_identity import RankIdentity


@pytest.mark.parametrize(
    ("env", "devices"),
    [
        ({}, ("n1/cpu/2",)),
        ({"LOOM_DEVICES": "NPU-7, NPU-8"}, ("NPU-7", "NPU-8")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ("GPU-a", "GPU-b")),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("n1/cpu/2",)),
        ({"LOOM_DEVICES": "cpu:4"}, ("n1/cpu/2",)),
        ({"LOOM_DEVICES": "cpu:4,0", "CUDA_VISIBLE_DEVICES": "GPU-a"}, ("GPU-a",)),
    ],
)
def test_a_rank_has_what_it_was_dealt_and_not_what_its_agent_was_told_to_offer(
    env: dict[str, str], devices: tuple[str, ...]
) -> None:
    assert RankIdentity.of({"LOOM_NODE": "n1", "LOCAL_RANK": "2", **env}).devices == devices
