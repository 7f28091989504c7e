import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from torchloom.launch.node_agent.gpus import GpuHealth, Xid
from torchloom.launch.node_agent.resources import (
    BadDevices,
    CpuSlots,
    NvidiaSmi,
    cpus,
    devices,
    memory_mb,
    offered,
)
from torchloom.messages.plane import Device

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


def test_a_node_has_room_for_its_slots_or_all_its_cpus_and_for_four_at_least() -> None:
    gpu = Device("GPU-1", "cuda", 0)

    assert cpus((*CpuSlots("n1", 3).devices(), gpu), "3") == 3
    assert cpus(CpuSlots("n1", 3).devices()) == 4
    assert cpus(CpuSlots("n1", 5).devices()) == 5
    assert cpus((gpu,), "GPU-1") == len(os.sched_getaffinity(0))


def test_memory_is_what_there_is_or_less_where_a_limit_says_so(tmp_path: Path) -> None:
    meminfo, limit, none = tmp_path / "meminfo", tmp_path / "max", tmp_path / "none"
    meminfo.write_text("MemFree: 1 kB\nMemTotal:       8388608 kB\n")
    limit.write_text("1073741824\n")

    assert memory_mb(meminfo, none) == 8192
    assert memory_mb(meminfo, limit) == 1024
    limit.write_text("max\n")
    assert (memory_mb(meminfo, limit), memory_mb(none, none)) == (8192, 0)


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


class TwoGpus:
    """A node with two GPUs."""

    def devices(self) -> tuple[Device, ...]:
        return (Device("GPU-a", "cuda", 0, 80), Device("GPU-b", "cuda", 1, 80))

    def health(self, uuid: str) -> GpuHealth:
        return GpuHealth()

    def wait(self, seconds: float) -> Xid | None:
        return None

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("choice", "uuids"),
    [
        ("cpu:2", ["n1/cpu/0", "n1/cpu/1"]),
        ("1", ["GPU-b"]),
        ("GPU-b, 0,GPU-b", ["GPU-b", "GPU-a"]),
        ("cpu:1,0", ["n1/cpu/0", "GPU-a"]),
        ("NPU-7", ["NPU-7"]),
    ],
)
def test_an_agent_offers_what_was_chosen(choice: str, uuids: list[str]) -> None:
    assert [device.uuid for device in offered("n1", choice, TwoGpus())] == uuids


def test_an_agent_offers_all_when_nothing_was_chosen() -> None:
    found = [device.uuid for device in offered("n1", " , ", TwoGpus())]

    assert found[-2:] == ["GPU-a", "GPU-b"]
    assert found[0] == "n1/cpu/0"


@pytest.mark.parametrize("choice", ["2", "cpu:", "cpu:x", "a b", "-1"])
def test_a_choice_that_is_no_device_is_refused_in_words(choice: str) -> None:
    with pytest.raises(BadDevices, match="GPUs here: GPU-a, GPU-b"):
        offered("n1", choice, TwoGpus())
