from collections.abc import Sequence

from torchloom.bus.messages import Device
from torchloom.launch.relay.resources import CpuSlots, NvidiaSmi, devices

ANSWER = """0, GPU-5a1c, 81559
1, GPU-77f0, [N/A]
[Unknown Error]
"""


def test_cpu_slots_are_named_by_node_and_stay_the_same() -> None:
    assert CpuSlots("n1", 2).devices() == (
        Device("n1/cpu/0", "cpu", 0),
        Device("n1/cpu/1", "cpu", 1),
    )
    assert len(CpuSlots("n1").devices()) >= 1


def test_gpus_are_read_from_what_their_tool_prints() -> None:
    asked: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> str:
        asked.append(words)
        return ANSWER

    found = devices((CpuSlots("n1", 1), NvidiaSmi(run)))

    assert found == (
        Device("n1/cpu/0", "cpu", 0),
        Device("GPU-5a1c", "cuda", 0, 81559 << 20),
        Device("GPU-77f0", "cuda", 1, 0),
    )
    assert asked[0][0] == "nvidia-smi"


def test_without_the_tool_there_are_none() -> None:
    assert NvidiaSmi(lambda words: "").devices() == ()
