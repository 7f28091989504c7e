"""The lock of a plane: one holder, gone with its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.plane import lock

HOLD = (
    "import sys; from pathlib import Path; from torchloom.plane import lock\n"
    "with lock.hold(Path(sys.argv[1])) as got: print(got, flush=True); sys.stdin.read()"
)


def test_a_lock_has_one_holder_and_can_be_had_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with lock.hold(path) as first, lock.hold(path) as second:
        assert (first, second) == (True, False)

    with lock.hold(path) as again:
        assert again is True
    assert path.stat().st_mode & 0o777 == 0o600


def test_whoever_lost_the_name_of_the_file_does_not_keep_others_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with lock.hold(path):
        path.unlink()
        with lock.hold(path) as got:
            assert got is True


def test_a_state_folder_has_one_plane_which_says_where_it_is(tmp_path: Path) -> None:
    path, place = tmp_path / "host.lock", tmp_path / "plane"

    with lock.hold_home(path, place) as first, lock.hold_home(path, tmp_path) as second:
        assert (first, second) == (True, False)

    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    said = [os.uname().nodename, boot, str(place), str(os.getpid()), ""]
    assert path.read_text().split("\n") == said  # also when it has ended


def test_where_files_cannot_be_locked_a_name_of_the_kernel_is_held(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with lock.hold_name(a) as one, lock.hold_name(a) as two, lock.hold_name(b) as other:
        assert (one, two, other) == (True, False, True)

    with lock.hold_name(tmp_path / "a") as again:
        assert again is True


@pytest.mark.process
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    words = [sys.executable, "-c", HOLD, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == b"True\n"
        with lock.hold(path) as got:
            assert got is False

        holder.kill()
        holder.wait()

        with lock.hold(path) as got:
            assert got is True
