"""A folder that others can write to: links, pipes, empty folders and full disks in it."""

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from torchloom.checkpoint import (
    BadManifest,
    CheckpointError,
    Damaged,
    Draft,
    LocalStorage,
    NotCommitted,
    StoreUnavailable,
)
from torchloom.checkpoint.stream import Disk

from ..harness.home import until
from .faults import Adverse
from .scenarios import commit, manifest_of, write
from .witness import put_plain, whole_steps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a root with step 100 in it."""
    put_plain(tmp_path / "root", 100)
    return tmp_path / "root"


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    outside = put_plain(tmp_path / "outside", 200)
    (root / "ckpt_step_00200").symlink_to(outside)
    put_plain(root, 300)
    (root / "ckpt_step_00300" / "worker_0.pt").unlink()
    (root / "ckpt_step_00300" / "worker_0.pt").symlink_to(outside / "worker_0.pt")
    put_plain(root, 400)
    (root / "ckpt_step_00400" / "manifest.json").rename(tmp_path / "manifest.json")
    (root / "ckpt_step_00400" / "manifest.json").symlink_to(tmp_path / "manifest.json")
    storage = LocalStorage(str(root))

    assert storage.latest() == 100
    with pytest.raises(NotCommitted):
        storage.manifest(200)
    with pytest.raises(Damaged):
        storage.verify(300)
    with pytest.raises(BadManifest):
        storage.manifest(400)


def test_a_link_is_not_written_through(root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    draft = root / "ckpt_step_00200.g0-1"
    draft.mkdir()
    (draft / "worker_0.pt").symlink_to(victim)
    (root / "ckpt_step_00300.g0-1").symlink_to(tmp_path)
    storage = LocalStorage(str(root))

    for step in (200, 300):
        with pytest.raises(StoreUnavailable):
            write(storage, step)

    assert victim.read_text() == "mine"
    assert not (tmp_path / "worker_0.pt").exists()


def test_clearing_does_not_go_through_links(root: Path, tmp_path: Path) -> None:
    outside = put_plain(tmp_path / "outside", 200)
    (root / "ckpt_step_00200.g0-1").symlink_to(outside)

    LocalStorage(str(root)).clear_drafts(5)

    assert sorted(os.listdir(outside)) == ["manifest.json", "worker_0.pt", "worker_1.pt"]


def test_a_pipe_in_place_of_a_shard_blocks_nobody(root: Path) -> None:
    (root / "ckpt_step_00100" / "worker_0.pt").unlink()
    os.mkfifo(root / "ckpt_step_00100" / "worker_0.pt")
    storage = LocalStorage(str(root))

    assert storage.latest() is None
    with pytest.raises(Damaged):
        storage.read_shard(100, storage.manifest(100).shards[0])


@pytest.mark.parametrize("renameat2", [True, False])
def test_a_name_that_is_taken_is_not_given_again(
    root: Path, renameat2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not renameat2:  # what an older C library has
        monkeypatch.setattr("torchloom.checkpoint.stream._renameat2", lambda: None)
    (root / "empty").mkdir()
    (root / "other").mkdir()
    descriptor = os.open(root, os.O_RDONLY)

    with pytest.raises(FileExistsError):
        Disk().rename_new(descriptor, "other", "empty")
    Disk().rename_new(descriptor, "other", "free")

    os.close(descriptor)
    assert sorted(os.listdir(root)) == ["ckpt_step_00100", "empty", "free"]


def test_a_folder_without_a_manifest_gives_way(root: Path) -> None:
    (root / "ckpt_step_00200").mkdir()

    commit(LocalStorage(str(root)), 200)

    assert whole_steps(root) == {100: 0, 200: 0}
    assert (root / "ckpt_step_00200.bad").is_dir()


def test_a_fence_waits_for_a_commit_that_has_begun(root: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Disk):
        def rename_new(self, folder: int, old: str, new: str) -> None:
            begun.set()
            assert go_on.wait(30)
            super().rename_new(folder, old, new)

    draft = write(LocalStorage(str(root)), 200)
    slow = LocalStorage(str(root), Slow())
    committing = threading.Thread(target=slow.commit, args=(draft, manifest_of(200)))
    fencing = threading.Thread(target=LocalStorage(str(root)).fence, args=(1,))
    committing.start()
    assert begun.wait(30)
    fencing.start()

    until(lambda: _locks_waited_for(root / ".lock"))
    assert not (root / "fence").exists()
    go_on.set()
    committing.join()
    fencing.join()

    assert (root / "fence").read_text() == "1\n"
    assert whole_steps(root) == {100: 0, 200: 0}


def test_a_fence_that_is_no_number_stops_commits(root: Path) -> None:
    (root / "fence").write_text("seven\n")

    with pytest.raises(CheckpointError, match="is not a number"):
        commit(LocalStorage(str(root)), 200)


def test_a_root_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    storage = LocalStorage(str(tmp_path / "root"))

    for ask in (storage.latest, storage.committed, lambda: write(storage, 100)):
        with pytest.raises(StoreUnavailable):
            ask()


def test_a_store_that_does_not_answer_is_not_an_older_checkpoint(root: Path) -> None:
    class Busy(Disk):
        def open_read(self, folder: int, name: str) -> int:
            raise OSError(24, "Too many open files")

    with pytest.raises(StoreUnavailable, match="Too many open files"):
        LocalStorage(str(root), Busy()).latest()


def test_a_stray_folder_in_a_draft_does_not_stop_the_rest(root: Path) -> None:
    (root / "ckpt_step_00200.g0-1" / "mine").mkdir(parents=True)
    (root / "ckpt_step_00300.g0-1").mkdir()
    storage = LocalStorage(str(root))

    storage.clear_drafts(1)

    assert not (root / "ckpt_step_00300.g0-1").exists()
    assert storage.clear_drafts(1) == []
    assert storage.latest() == 100


def test_a_draft_is_cleared_beside_what_an_older_clearing_left_of_it(root: Path) -> None:
    for name in ("ckpt_step_00200.g0-1", ".gone-ckpt_step_00200.g0-1"):
        put_plain(root, 200).rename(root / name)

    assert LocalStorage(str(root), Adverse()).clear_drafts(1) == ["ckpt_step_00200.g0-1"]

    assert sorted(os.listdir(root)) == [".lock", "ckpt_step_00100"]


def test_what_is_saved_is_as_private_as_the_user_wants(root: Path) -> None:
    old = os.umask(0o077)
    try:
        commit(LocalStorage(str(root)), 200)
    finally:
        os.umask(old)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in (root / "ckpt_step_00200").iterdir()}
    assert modes == {0o600}


@pytest.mark.needs("mount")
@pytest.mark.process
def test_a_full_disk_is_said_and_passes(tmp_path: Path) -> None:
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "loom-full", str(tmp_path)]
    subprocess.run(words, check=True)
    try:
        storage = LocalStorage(str(tmp_path / "root"))
        commit(storage, 100)
        (tmp_path / "ballast").write_bytes(b"x" * 170_000)
        with pytest.raises(StoreUnavailable, match="No space left"):
            commit(storage, 200)
        assert storage.latest() == 100
        (tmp_path / "ballast").unlink()
        storage.discard(Draft(200, 0, 1))
        commit(storage, 200)
        assert whole_steps(tmp_path / "root") == {100: 0, 200: 0}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def _locks_waited_for(path: Path) -> bool:
    """Tell, by the kernel's own list, whether someone waits for the lock of a file."""
    inode = f":{path.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").open())
