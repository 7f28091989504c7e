"""The lock of a plane: one holder, gone with its process."""

import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.weaver.plane import lock

HOLD = (
    "import sys; from pathlib import Path; from torchloom.weaver.plane import lock\n"
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
    path = tmp_path / "host.lock"

    with (
        lock.hold_home(path, Path("/run/user/7/torchloom/plane")),
        pytest.raises(lock.HomeTaken) as taken,
        lock.hold_home(path, tmp_path),
    ):
        pass

    assert str(taken.value) == (
        "the plane of this LOOM_HOME has its sockets in /run/user/7/torchloom/plane; "
        "set XDG_RUNTIME_DIR=/run/user/7 to reach it"
    )
    with lock.hold_home(path, tmp_path):
        assert path.read_text() == str(tmp_path)


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
