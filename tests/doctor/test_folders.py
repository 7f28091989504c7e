"""The folders that hold state: writable, private, local, roomy."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchloom.doctor import folders
from torchloom.doctor.findings import CheckState


def mounted(root: Path, *points: tuple[Path, str]) -> None:
    lines = [f"1 1 0:1 / {point} rw - {kind} x rw\n" for point, kind in points]
    (root / "proc/self/mountinfo").write_text("1 1 0:1 / / rw - ext4 x rw\n" + "".join(lines))


def test_a_state_folder_is_made_and_its_file_system_named(place: Any, tmp_path: Path) -> None:
    (found,) = folders.home(place())

    assert (found.state, found.text) == (CheckState.OK, f"{tmp_path}/home (ext4)")


def test_state_on_a_network_file_system_is_a_note_about_sqlite(
    place: Any, root: Path, tmp_path: Path
) -> None:
    mounted(root, (tmp_path, "lustre"))

    (found,) = folders.home(place())

    assert found.state is CheckState.NOTE
    assert "lustre, a network file system: unfit for SQLite" in found.text


def test_sockets_on_a_network_file_system_are_a_problem(
    place: Any, root: Path, tmp_path: Path
) -> None:
    mounted(root, (tmp_path / "run", "nfs4"))

    (found,) = folders.runtime(place())

    assert (found.state, "nfs4" in found.text) == (CheckState.PROBLEM, True)
    assert "XDG_RUNTIME_DIR" in found.remedy


@pytest.mark.parametrize("how", ["open", "link"])
def test_a_runtime_folder_that_is_not_ours_alone_is_a_problem(
    how: str, place: Any, tmp_path: Path
) -> None:
    if how == "open":
        (tmp_path / "run").mkdir(mode=0o755)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "run").symlink_to(tmp_path / "elsewhere")

    (found,) = folders.runtime(place())

    assert (found.state, found.text) == (CheckState.PROBLEM, f"{tmp_path}/run is open to others")


def test_logs_are_looked_at_only_where_a_config_file_sends_them(place: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert list(folders.logs(place())) == []
    (good,) = folders.logs(place(logs=tmp_path / "logs"))
    (bad,) = folders.logs(place(logs=tmp_path / "file/logs"))

    assert (good.state, bad.state) == (CheckState.OK, CheckState.PROBLEM)


@pytest.mark.process
@pytest.mark.needs("mount")
def test_shared_memory_too_small_for_loader_workers_is_a_note(place: Any, root: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "x", root / "dev/shm"], check=True)
    try:
        (found,) = folders.shared_memory(place())
    finally:
        subprocess.run(["umount", root / "dev/shm"], check=True)

    assert found.state is CheckState.NOTE
    assert "0.1 GiB of 0.1 GiB free" in found.text
    assert "--shm-size" in found.remedy


@pytest.mark.process
@pytest.mark.needs("mount")
@pytest.mark.parametrize("how", ["bytes", "inodes"])
def test_a_disk_without_bytes_or_inodes_is_a_problem(how: str, place: Any, tmp_path: Path) -> None:
    option = "size=2g" if how == "bytes" else "size=4g,nr_inodes=50"
    disk = tmp_path / "home"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "x", disk], check=True)
    try:
        if how == "bytes":
            subprocess.run(["fallocate", "-l", "1500M", disk / "full"], check=True)
        found = list(folders.disk(place()))
    finally:
        subprocess.run(["umount", disk], check=True)

    assert [each.state for each in found if str(disk) in each.text] == [CheckState.PROBLEM]


def test_folders_on_one_disk_are_one_finding(place: Any) -> None:
    assert len(list(folders.disk(place()))) == 1
