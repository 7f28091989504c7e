"""Sockets are in a folder that is the user's alone, however deep it lies."""

import os
import socket
import stat
from pathlib import Path

import pytest

from torchloom.launch.host import sockets
from torchloom.launch.host.sockets import RuntimeFolderUnsafe, socket_path
from torchloom.unix import same_user

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "torchloom"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("before", [None, 0o755, 0o777])
def test_the_folder_is_closed_to_others(before: int | None, runtime: Path) -> None:
    if before is not None:
        runtime.mkdir()
        runtime.chmod(before)

    path = socket_path("a.sock")

    assert path == runtime / "a.sock"
    assert mode(runtime) == 0o700


@needs_root
def test_a_folder_of_another_user_is_refused(runtime: Path) -> None:
    runtime.mkdir()
    os.chown(runtime, NOBODY, NOBODY)

    with pytest.raises(RuntimeFolderUnsafe) as refused:
        socket_path("a.sock")

    assert str(refused.value) == (
        f"cannot keep sockets in {runtime}: it belongs to user {NOBODY};"
        " set XDG_RUNTIME_DIR to a local folder of yours"
    )


def test_a_link_in_the_place_of_the_folder_is_refused(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    runtime.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RuntimeFolderUnsafe):
        socket_path("a.sock")

    assert mode(tmp_path / "elsewhere") == 0o755


def test_a_file_in_the_place_of_the_folder_is_said(runtime: Path) -> None:
    runtime.write_text("")

    with pytest.raises(RuntimeFolderUnsafe) as refused:
        socket_path("a.sock")

    assert "set XDG_RUNTIME_DIR" in str(refused.value)


@pytest.mark.parametrize("depth", [1, 12])
def test_a_call_is_taken_at_any_depth(depth: int, tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-rather-long-name"] * depth)
    folder.mkdir(parents=True)
    path = folder / "a.sock"

    with sockets.listen(path) as listener, sockets.connect(path) as caller:
        served, _ = listener.accept()
        with served:
            caller.sendall(b"word")
            heard = served.recv(16)
            same = same_user(served)

    assert (heard, same) == (b"word", True)
    assert mode(path) == 0o600


def test_the_next_takes_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    sockets.listen(path).close()

    with pytest.raises(ConnectionRefusedError):
        sockets.connect(path)

    with sockets.listen(path), sockets.connect(path):
        pass


def test_where_nobody_listens_the_call_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sockets.connect(tmp_path / "a.sock")


@needs_root
@pytest.mark.process
def test_a_caller_of_another_user_is_known(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    path = Path(f"/tmp/loom-test-{os.getpid()}.sock")
    with ours, theirs, sockets.listen(path) as listener:
        path.chmod(0o666)
        child = os.fork()
        if child == 0:
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(path))
                theirs.send(b"connected")
                theirs.recv(1)
            os._exit(0)
        ours.recv(16)
        served, _ = listener.accept()
        with served:
            same = same_user(served)
        ours.send(b"x")
        os.waitpid(child, 0)
    path.unlink()

    assert not same
