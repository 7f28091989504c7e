"""The machine is told as the kernel describes it, with the devices of the job's nodes alone."""

import os
import subprocess

import pytest

from torchloom.weaver.runs.provenance import cpu_model, hardware, memory_mb
from torchloom.weaver.store.rows import DeviceRow

DEVICES = [
    DeviceRow("GPU-2", "a", "gpu", 1, 80),
    DeviceRow("GPU-1", "a", "gpu", 0, 80),
    DeviceRow("GPU-9", "far", "gpu", 0, 80),
]


@pytest.mark.process
def test_this_machine_is_what_other_programs_say_it_is() -> None:
    found = hardware("a", ["b"], DEVICES)

    cores = int(subprocess.run(["nproc", "--all"], capture_output=True, check=True).stdout)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["cores"] == cores
    assert found["memory_mb"] == pages // 2**20
    assert (found["host"], found["nodes"]) == ("a", ["a", "b"])
    assert [device["uuid"] for device in found["devices"]] == ["GPU-1", "GPU-2"]


def test_descriptions_of_other_kernels_are_understood() -> None:
    assert (
        cpu_model("processor : 0\nmodel name\t: AMD EPYC 9554\nmodel name : x\n") == "AMD EPYC 9554"
    )
    assert cpu_model("processor: 0\n") is None
    assert memory_mb("MemFree: 1 kB\nMemTotal:       2048 kB\n") == 2
    assert memory_mb("") is None
