from pathlib import Path

import pytest

from torchloom.launch.host.devices import deal, visible


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("", ()),
        ("0", ("0",)),
        ("2, 3", ("2", "3")),
        ("GPU-1b2,GPU-3c4", ("GPU-1b2", "GPU-3c4")),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_a_mask_says_which_devices_may_be_used(
    tmp_path: Path, mask: str, found: tuple[str, ...]
) -> None:
    (tmp_path / "nvidia7").touch()

    assert visible({"CUDA_VISIBLE_DEVICES": mask}, tmp_path) == found


def test_without_a_mask_the_kernels_devices_count_in_their_order(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()

    assert visible({}, tmp_path) == ("0", "2", "10")


def test_a_host_without_devices_has_none(tmp_path: Path) -> None:
    assert visible({}, tmp_path) == ()


def test_each_gets_its_own_devices() -> None:
    assert deal(("4", "5", "6", "7"), [2, 1, 1]) == ["4,5", "6", "7"]


def test_who_wants_none_gets_none() -> None:
    assert deal(("0", "1"), [1, 0, 1]) == ["0", "", "1"]


def test_too_few_are_not_dealt_at_all() -> None:
    assert deal(("0",), [1, 1]) is None
