"""What the kernel's files and nvidia-smi say of accelerators, and what masks do to them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchloom.doctor.findings import CheckFinding, CheckState
from torchloom.doctor.host import accelerators


@pytest.fixture
def nvidia(root: Path, tmp_path: Path) -> Path:
    """Two devices with a driver; and a folder for PATH with an nvidia-smi in it."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (root / "dev" / name).touch()
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    return tmp_path / "bin"


def test_a_machine_without_any_uses_its_cpu(place: Any) -> None:
    assert list(accelerators(place())) == [
        CheckFinding("devices", CheckState.OK, "no accelerator; ranks use the CPU")
    ]


def test_nvidia_smi_tells_kind_and_driver(place: Any, nvidia: Path) -> None:
    def ask(words: Any, limit: float) -> str:
        return "NVIDIA H200, 143771 MiB, 570.1\n" * 2

    found = list(accelerators(place(env={"PATH": str(nvidia)}, ask=ask)))

    text = "2 NVIDIA: H200 143771 MiB, driver 570.1"
    assert found == [CheckFinding("devices", CheckState.OK, text)]


def test_a_driver_that_does_not_answer_is_a_problem_with_its_own_words(
    place: Any, nvidia: Path
) -> None:
    def ask(words: Any, limit: float) -> str:
        raise subprocess.CalledProcessError(18, words, "", "Driver/library version mismatch\n")

    (found,) = accelerators(place(env={"PATH": str(nvidia)}, ask=ask))

    assert (found.state, found.text) == (
        CheckState.PROBLEM,
        "2 NVIDIA, nvidia-smi: Driver/library version mismatch",
    )


def test_a_device_that_fell_off_the_bus_is_a_problem(place: Any, nvidia: Path) -> None:
    def ask(words: Any, limit: float) -> str:
        return "NVIDIA H200, 143771 MiB, 570.1\n"

    (found,) = accelerators(place(env={"PATH": str(nvidia)}, ask=ask))

    assert found.state is CheckState.PROBLEM
    assert found.text.endswith("; 2 device files")


def test_device_files_without_a_driver_are_a_problem(place: Any, root: Path) -> None:
    (root / "dev/nvidia0").touch()

    (found,) = accelerators(place())

    assert (found.state, found.text) == (
        CheckState.PROBLEM,
        "1 NVIDIA device files, but no kernel driver",
    )


@pytest.mark.parametrize(
    ("mask", "state"),
    [
        ("0", CheckState.OK),
        ("0,7", CheckState.PROBLEM),
        ("", CheckState.NOTE),
        ("-1", CheckState.NOTE),
    ],
)
def test_a_mask_is_compared_with_what_is_there(
    mask: str, state: CheckState, place: Any, nvidia: Path
) -> None:
    env = {"PATH": "/nowhere", "CUDA_VISIBLE_DEVICES": mask}

    found = list(accelerators(place(env=env)))

    assert [(each.name, each.state) for each in found] == [
        ("devices", CheckState.OK),
        ("mask", state),
    ]


def test_amd_and_intel_are_told_by_their_kernel_driver(place: Any, root: Path) -> None:
    (root / "dev/kfd").touch()
    for number, driver in enumerate(("amdgpu", "amdgpu", "xe", "virtio")):
        (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        card = root / f"sys/class/drm/renderD{128 + number}/device"
        card.mkdir(parents=True)
        (card / "driver").symlink_to(root / "drivers" / driver)

    assert [each.text for each in accelerators(place())] == ["2 AMD", "1 Intel"]
